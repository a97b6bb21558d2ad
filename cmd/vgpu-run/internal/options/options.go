// SPDX-License-Identifier: Apache-2.0

// Package options owns vgpu-run's command line: what may be asked for, and the
// words in which anything else is refused. It never looks at a device.
package options

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"vernier.dev/vernier/api/v1alpha1"
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

Runs COMMAND, and all that it starts, within a share of a GPU, and reports at the
end what it used. The exit code is COMMAND's; 128+N if signal N ended it, 126 or
127 if it could not be run, 125 if vgpu-run itself failed.

  --core PERCENT    compute time of each device, 1 to 100 (default: no quota)
  --burst           device time beyond --core too, while no other vgpu-run of this
                    user wants it
  --mem-mib MIB     memory of each device (default: all of it)
  --device DEVICE[,core=PERCENT][,burst][,mem-mib=MIB]
                    a device by UUID, or by index as CUDA counts them; repeat it
                    for several, with amounts of their own where they differ
                    (default: every device that the driver shows)
  --json            the report as one line of JSON instead of a table
  --report FILE     where the report goes (default: stderr)
  --run-dir DIR     where the vgpu-run that share devices find each other
                    (default: one folder for each user)
  --library FILE    libvgpu.so (default: beside vgpu-run)
`

// Parse reads the command line. help gets the usage if that is asked for; the
// error is flag.ErrHelp then.
func Parse(args []string, help io.Writer) (Options, error) {
	var o Options
	f := flag.NewFlagSet("vgpu-run", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("core", "", func(v string) (err error) { o.Default.Core, err = percent(v); return })
	f.BoolVar(&o.Default.Burst, "burst", false, "")
	f.Func("mem-mib", "", func(v string) (err error) { o.Default.Mem, err = mib(v); return })
	f.Func("device", "", func(v string) error {
		d, err := device(v)
		o.Devices = append(o.Devices, d)
		return err
	})
	f.BoolVar(&o.JSON, "json", false, "")
	f.StringVar(&o.Report, "report", "", "")
	f.StringVar(&o.RunDir, "run-dir", "", "")
	f.StringVar(&o.Library, "library", "", "")
	if err := f.Parse(args); err != nil {
		if err == flag.ErrHelp {
			fmt.Fprint(help, usage)
			return o, err
		}
		return o, fmt.Errorf("%w; see vgpu-run --help", err)
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
		if d.Core == 0 {
			d.Core = o.Default.Core
		}
		if d.Mem == 0 {
			d.Mem = o.Default.Mem
		}
		d.Burst = d.Burst || o.Default.Burst
		if err := d.check(); err != nil {
			return o, fmt.Errorf("--device %s: %w", d.Name, err)
		}
	}
	if len(o.Devices) == 0 {
		return o, o.Default.check()
	}
	return o, nil
}

func (s Share) check() error {
	if s.Burst && s.Core == 0 {
		return errors.New("burst without core: there is no compute quota to exceed; set --core or leave --burst out")
	}
	return nil
}

// device reads "DEVICE[,core=PERCENT][,burst][,mem-mib=MIB]".
func device(v string) (Device, error) {
	name, rest, _ := strings.Cut(v, ",")
	d := Device{Name: name}
	if i, isIndex := d.Index(); isIndex && i < 0 || !isIndex && !layout.IsUUID(name) {
		return d, fmt.Errorf("device %q: want an index from 0, or a UUID as nvidia-smi -L prints it (GPU-...; MIG instances are held to their share by the device itself)", name)
	}
	for rest != "" {
		var pair string
		pair, rest, _ = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case "core":
			d.Core, err = percent(value)
		case "burst":
			if d.Burst = true; strings.Contains(pair, "=") {
				err = errors.New("want burst alone")
			}
		case "mem-mib":
			d.Mem, err = mib(value)
		default:
			err = errors.New("want core=PERCENT, burst or mem-mib=MIB")
		}
		if err != nil {
			return d, fmt.Errorf("%q of device %s: %w", pair, name, err)
		}
	}
	return d, nil
}

func percent(v string) (v1alpha1.Percent, error) {
	n, err := v1alpha1.ParsePercent(v)
	if err != nil || n > v1alpha1.WholeGPU {
		return 0, errors.New("want a whole number of percent from 1 to 100; leave it out for no compute quota")
	}
	return n, nil
}

func mib(v string) (v1alpha1.MiB, error) {
	n, err := v1alpha1.ParseMiB(v)
	if err != nil || n > layout.MaxMemoryBytes>>20 {
		return 0, errors.New("want a whole number of MiB from 1; leave it out for all of the device's memory")
	}
	return n, nil
}
