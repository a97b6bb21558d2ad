// SPDX-License-Identifier: Apache-2.0

// Package options owns vgpu-run's command line: what may be asked for, and the
// words in which anything else is refused. It never looks at a device.
package options

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	flag "github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/api/version"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Options is a command line.
type Options struct {
	// Devices are the devices that the command may use; none: every one that the
	// driver shows, with Default.
	Devices []Device
	Default Share
	JSON    bool
	Report  string // file for the report; "" is stderr
	RunDir  string
	Library string
	Command []string
}

// Share is what the command may use of one device.
type Share struct {
	Core v1alpha1.Percent // compute quota; 0: none
	Mem  v1alpha1.MiB     // device memory; 0: all that the device has
	// Burst lets it exceed Core while nobody else wants the time.
	Burst bool
	// Idle: it has only what no other command wants.
	Idle bool
}

// Device is one --device.
type Device struct {
	Name string // a UUID, or an index as CUDA counts
	Share
}

// Index is the device's index. False where it is named by UUID.
func (d Device) Index() (int, bool) {
	i, err := strconv.Atoi(d.Name)
	return i, err == nil
}

const usage = `Usage: vgpu-run [flags] -- COMMAND [ARGUMENT...]
       vgpu-run resize SESSION [flags]   (see vgpu-run resize --help)

Runs COMMAND, and all that it starts, within a share of a GPU, and reports at the
end what it used. The exit code is COMMAND's; 128+N if signal N ended it, 126 or
127 if it could not be run, 125 if vgpu-run itself failed.

  --core PERCENT    compute time of each device, 1 to 100 (default: no quota)
  --burst           device time beyond --core too, while no other vgpu-run of this
                    user wants it
  --idle            only device time that no other vgpu-run of this user wants
  --mem-mib MIB     memory of each device (default: all of it)
  --device DEVICE[,core=PERCENT][,burst][,idle][,mem-mib=MIB]
                    a device by UUID, or by index as CUDA counts them; repeat it
                    for several, with amounts of their own where they differ.
                    COMMAND sees no other (default: every device that the driver
                    shows)
  --json            the report as one line of JSON instead of a table
  --report FILE     where the report goes (default: stderr); FILE is replaced when
                    COMMAND has ended
  --run-dir DIR     where the vgpu-run that share devices find each other
                    (default: one folder for each user)
  --library FILE    libvgpu.so (default: beside vgpu-run)
  --version         print the version and exit

Limited are COMMAND and its descendants. What COMMAND asks a service to start isn't:
tmux and screen with a server that runs already, systemd-run, docker, sbatch. Start
vgpu-run inside of these instead: tmux new vgpu-run --core 30 -- COMMAND.

COMMAND ends with vgpu-run, also where that is killed (kill -9). Signals sent to
vgpu-run reach COMMAND, but for KILL and STOP, which no program can pass on: stop
COMMAND itself, or send TSTP.
`

// Parse reads the command line. help gets the usage if that is asked for; the
// error is ErrHelp then.
func Parse(args []string, help io.Writer) (Options, error) {
	var o Options
	f := flag.NewFlagSet("vgpu-run", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.SetInterspersed(false) // what follows COMMAND is COMMAND's
	f.Usage = func() {}
	f.Func("core", "", func(v string) (err error) { o.Default.Core, err = percent(v, noQuota); return })
	f.BoolVar(&o.Default.Burst, "burst", false, "")
	f.BoolVar(&o.Default.Idle, "idle", false, "")
	f.Func("mem-mib", "", func(v string) (err error) { o.Default.Mem, err = mib(v, allMemory); return })
	f.Func("device", "", func(v string) error {
		d, err := device(v)
		o.Devices = append(o.Devices, d)
		return err
	})
	f.BoolVar(&o.JSON, "json", false, "")
	f.StringVar(&o.Report, "report", "", "")
	f.StringVar(&o.RunDir, "run-dir", "", "")
	f.StringVar(&o.Library, "library", "", "")
	version.AddFlag(f)
	if err := f.Parse(args); err != nil {
		if err == ErrHelp {
			fmt.Fprint(help, usage)
			return o, err
		}
		return o, fmt.Errorf("%w; %s", err, remedy(err))
	}
	if o.Command = f.Args(); len(o.Command) == 0 {
		return o, errors.New("no command; write it behind --, as in: vgpu-run --core 30 --mem-mib 1024 -- python train.py")
	}
	if len(o.Devices) > layout.MaxDevices {
		return o, fmt.Errorf("--device is given %d times; a command has at most %d devices", len(o.Devices), layout.MaxDevices)
	}
	for i := range o.Devices {
		d := &o.Devices[i]
		for _, other := range o.Devices[:i] {
			if strings.EqualFold(d.Name, other.Name) {
				return o, fmt.Errorf("--device %s is given twice; name each device once", d.Name)
			}
		}
		d.Core, d.Mem, d.Burst, d.Idle = cmp.Or(d.Core, o.Default.Core), cmp.Or(d.Mem, o.Default.Mem), d.Burst || o.Default.Burst, d.Idle || o.Default.Idle
		if err := d.check(); err != nil {
			return o, fmt.Errorf("--device %s: %w", d.Name, err)
		}
	}
	if len(o.Devices) == 0 {
		return o, o.Default.check()
	}
	return o, nil
}

// ErrHelp is the error of a command line that asks for the usage.
var ErrHelp = flag.ErrHelp

// remedy names the flag that was meant, for spellings of other programs.
func remedy(err error) string {
	unknown, ok := errors.AsType[*flag.NotExistError](err)
	if !ok {
		return "see vgpu-run --help"
	}
	switch name := unknown.GetSpecifiedName(); {
	case strings.HasPrefix(name, "mem"):
		return "memory is --mem-mib, in MiB: 1 GiB is --mem-mib 1024"
	case strings.HasPrefix(name, "gpu"), strings.HasPrefix(name, "dev"):
		return "devices are --device, by index or UUID: --device 0"
	default:
		return "flags have two dashes; see vgpu-run --help"
	}
}

func (s Share) check() error {
	if s.Idle && (s.Core > 0 || s.Burst) {
		return errors.New("idle beside core or burst: it has no compute quota; leave one of them out")
	}
	if s.Burst && s.Core == 0 {
		return errors.New("burst without core: there is no compute quota to exceed; set --core or leave --burst out")
	}
	return nil
}

// device reads "DEVICE[,core=PERCENT][,burst][,idle][,mem-mib=MIB]".
func device(v string) (Device, error) {
	name, rest, _ := strings.Cut(v, ",")
	d := Device{Name: name}
	if i, isIndex := d.Index(); isIndex && i < 0 || !isIndex && !layout.IsUUID(name) {
		return d, fmt.Errorf("device %q: want an index from 0, or a UUID as nvidia-smi -L prints it (GPU-...). MIG instances are held to their share by the device itself", name)
	}
	for rest != "" {
		var pair string
		pair, rest, _ = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case "core":
			d.Core, err = percent(value, noQuota)
		case "burst", "idle":
			if d.Burst, d.Idle = d.Burst || key == "burst", d.Idle || key == "idle"; strings.Contains(pair, "=") {
				err = fmt.Errorf("want %s alone", key)
			}
		case "mem-mib":
			d.Mem, err = mib(value, allMemory)
		default:
			err = errors.New("want core=PERCENT, burst, idle or mem-mib=MIB")
		}
		if err != nil {
			return d, fmt.Errorf("%q of device %s: %w", pair, name, err)
		}
	}
	return d, nil
}

// What it is to leave an amount out.
const noQuota, allMemory, asItIs = "no compute quota", "all of the device's memory", "what is in force"

func percent(v, without string) (v1alpha1.Percent, error) {
	n, err := v1alpha1.ParsePercent(strings.TrimSuffix(v, "%"))
	if err != nil || n > v1alpha1.WholeGPU {
		return 0, errors.New("want a whole number of percent from 1 to 100; leave it out for " + without)
	}
	return n, nil
}

// mib reads whole MiB. With a unit it is refused with the number to write: G is a
// power of ten for some programs and of two for others.
func mib(v, without string) (v1alpha1.MiB, error) {
	if n, err := v1alpha1.ParseMiB(v); err == nil && n <= layout.MaxMemoryBytes>>20 {
		return n, nil
	}
	if q, err := resource.ParseQuantity(strings.TrimSuffix(v, "B")); err == nil && q.Value() >= 1<<20 && q.Value() <= layout.MaxMemoryBytes {
		if binary, err := resource.ParseQuantity(strings.TrimRight(v, "iB") + "i"); err == nil {
			q = binary
		}
		return 0, fmt.Errorf("this is a whole number of MiB: write %d", q.Value()>>20)
	}
	return 0, errors.New("want a whole number of MiB from 1; leave it out for " + without)
}
