// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"io"
	"strings"

	flag "github.com/spf13/pflag"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Resize is a command line of vgpu-run resize.
type Resize struct {
	Session string // PID of its vgpu-run, or name of its folder in RunDir
	Device  string // UUID; "": the only one of the session
	Core    v1alpha1.Percent
	Mem     v1alpha1.MiB // as Core: 0 for what is in force
	RunDir  string
}

const resizeUsage = `Usage: vgpu-run resize SESSION [--core PERCENT] [--mem-mib MIB] [flags]

Changes the share of a command that runs under vgpu-run. SESSION is the PID of its
vgpu-run, or the name of its folder in the run directory. It is in force at once;
memory below what is in use is refused.

  --core PERCENT    compute time, 1 to 100 (default: as it is)
  --mem-mib MIB     memory, up to the device's (default: as it is)
  --device UUID     which device, where the command has several
  --run-dir DIR     as the vgpu-run was given it
`

// ParseResize reads the command line behind resize. help gets the usage if that is asked
// for; the error is ErrHelp then.
func ParseResize(args []string, help io.Writer) (Resize, error) {
	var o Resize
	f := flag.NewFlagSet("vgpu-run resize", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.Func("core", "", func(v string) (err error) { o.Core, err = percent(v, asItIs); return })
	f.Func("mem-mib", "", func(v string) (err error) { o.Mem, err = mib(v, asItIs); return })
	f.StringVar(&o.Device, "device", "", "")
	f.StringVar(&o.RunDir, "run-dir", "", "")
	if err := f.Parse(args); err != nil {
		if err == ErrHelp {
			fmt.Fprint(help, resizeUsage)
			return o, err
		}
		return o, fmt.Errorf("%w; see vgpu-run resize --help", err)
	}
	if f.NArg() != 1 || strings.ContainsRune(f.Arg(0), '/') {
		return o, errors.New("want one session, as in: vgpu-run resize 4711 --core 40; to run a program of that name: vgpu-run -- resize")
	}
	if o.Core == 0 && o.Mem == 0 {
		return o, errors.New("nothing to change; set --core, --mem-mib or both")
	}
	if o.Device != "" && !layout.IsUUID(o.Device) {
		return o, fmt.Errorf("--device %q: want a UUID as nvidia-smi -L prints it (GPU-...)", o.Device)
	}
	o.Session, o.Device = f.Arg(0), strings.Replace(strings.ToLower(o.Device), "gpu-", "GPU-", 1)
	return o, nil
}
