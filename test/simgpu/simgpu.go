// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Models that the simulation knows.
const (
	A100 = "A100-SXM4-80GB"
	H100 = "H100-80GB"
	H200 = "H200-141GB"
	L40S = "L40S"
	T4   = "T4"
)

// Driver versions: the newest simulated, with memory limits by cgroup (the
// default), one before those, whose MPS serves all users at once, and one whose MPS
// does not. The NVML of both lacks the symbols that came after branch 535.
const (
	DriverNewest = "615.43.02"
	Driver555    = "555.58.02"
	Driver535    = "535.161.08"
)

// GPU is a number of equal devices.
type GPU struct {
	Model string
	Count int  // 0 is 1
	NUMA  int  // node that the devices sit on
	MIG   bool // MIG mode on from the start

	PCIe     string // host bridge and PCIe switches above them, as "0.1"; "" is a host bridge each
	Switches int    // NVSwitches that their NVLinks lead to
	Fabric   string // fabric of the switches, as "CLUSTERUUID.CLIQUE"; "" is none that has come up
}

// Machines with links between their devices, for Config.Template.
const (
	// HGX has eight H100, all linked by NVSwitches. Each two are below one PCIe switch, four
	// on each of two NUMA nodes.
	HGX = "hgx-h100-8"
	// BridgedA100 has four A100, linked in pairs by bridges: 0 with 1, 2 with 3, each pair
	// on a NUMA node.
	BridgedA100 = "a100-bridged-4"
	// SwitchedL40S has eight L40S without NVLink, each four below a PCIe switch and on a
	// NUMA node.
	SwitchedL40S = "l40s-8"
)

// Config describes one simulated machine.
type Config struct {
	Template   string // devices before GPUs; "" is none
	GPUs       []GPU
	Bridges    []string // pairs of devices with an NVLink bridge, by index: "0-1"
	Driver     string   // "" is the profile's, without one DriverNewest
	Seed       string   // UUIDs follow from it: another one for every node
	ContextMiB int      // memory that a context takes, 0 to 4096; 0 is the profile's
	Profile    string   // what else a real machine was seen to do: "h100-vm", or "" for none of it
}

// Sim is a state file and the folder of the built programs.
type Sim struct {
	Bin   string
	State string
}

// Create makes a new state file at path; bin is what Build returned. Processes
// that use an older file at path keep it.
func Create(bin, path string, cfg Config) (*Sim, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	s := &Sim{Bin: bin, State: path}
	args := []string{"create"}
	if cfg.Driver != "" {
		args = append(args, "--driver", cfg.Driver)
	}
	if cfg.Seed != "" {
		args = append(args, "--seed", cfg.Seed)
	}
	if cfg.ContextMiB != 0 {
		args = append(args, "--context-mib", strconv.Itoa(cfg.ContextMiB))
	}
	if cfg.Profile != "" {
		args = append(args, "--profile", cfg.Profile)
	}
	if cfg.Template != "" {
		args = append(args, "--template", cfg.Template)
	}
	for _, g := range cfg.GPUs {
		spec := fmt.Sprintf("%s,count=%d,numa=%d", g.Model, max(g.Count, 1), g.NUMA)
		if g.MIG {
			spec += ",mig=1"
		}
		if g.PCIe != "" {
			spec += ",pcie=" + g.PCIe
		}
		if g.Switches != 0 {
			spec += fmt.Sprintf(",switch=%d", g.Switches)
		}
		if g.Fabric != "" {
			spec += ",fabric=" + g.Fabric
		}
		args = append(args, "--gpu", spec)
	}
	for _, pair := range cfg.Bridges {
		args = append(args, "--bridge", pair)
	}
	_, err := s.ctl(args...)
	return s, err
}

// Env returns the environment that makes a program use this machine's GPUs
// through the libraries in Bin, on top of the present environment. Without
// device nodes it also needs SIMGPU_ALL_DEVICES=1, which New sets, or DevRoot.
func (s *Sim) Env(more ...string) []string {
	env := append(os.Environ(), "SIMGPU_STATE="+s.State, "LD_LIBRARY_PATH="+s.Bin)
	return append(env, more...)
}

// DevRoot is the environment entry by which device nodes are looked for below
// root instead of /.
func DevRoot(root string) string { return "SIMGPU_DEVROOT=" + root }

// NVML is the path of the library as the state's driver version has it.
func (s *Sim) NVML() string {
	if st, err := s.Status(); err == nil && !st.Newest() {
		return filepath.Join(s.Bin, "535", "libnvidia-ml.so.1")
	}
	return filepath.Join(s.Bin, "libnvidia-ml.so.1")
}

// Program returns the path of a built program, such as "cudademo".
func (s *Sim) Program(name string) string { return filepath.Join(s.Bin, name) }

// Xid raises an Xid event on a device, which is an index or a UUID.
func (s *Sim) Xid(device string, code int) error {
	return s.do("xid", device, strconv.Itoa(code))
}

// InstanceXid raises an Xid event of a GPU instance, by its id.
func (s *Sim) InstanceXid(device string, code, instance int) error {
	return s.do("xid", device, strconv.Itoa(code), strconv.Itoa(instance))
}

// ECC counts errors on a device and raises their events.
func (s *Sim) ECC(device string, corrected bool, count int) error {
	kind := "uncorrected"
	if corrected {
		kind = "corrected"
	}
	return s.do("ecc", device, kind, strconv.Itoa(count))
}

// Lose drops a device off the bus, Recover brings it back.
func (s *Sim) Lose(device string) error    { return s.do("lose", device) }
func (s *Sim) Recover(device string) error { return s.do("recover", device) }

// Links brings a device's NVLinks down, or up again.
func (s *Sim) Links(device string, up bool) error {
	if up {
		return s.do("links", device, "up")
	}
	return s.do("links", device, "down")
}

// GPM sets what NVML's performance monitoring says of a metric, by its number in nvml.h.
func (s *Sim) GPM(device string, metric int, value float64) error {
	return s.do("gpm", device, strconv.Itoa(metric), strconv.FormatFloat(value, 'f', 3, 64))
}

// MPS plants a fault in the multi-process service of a device, as the command
// "simgpuctl mps" says them: MPS("0", "hang", "on"), MPS("0", "crash").
func (s *Sim) MPS(device, fault string, value ...string) error {
	return s.do(append([]string{"mps", device, fault}, value...)...)
}

// Replace puts another piece of hardware in the device's place: a new UUID. Handles
// that processes have lead to it at once, as they would not in reality.
func (s *Sim) Replace(device string) error { return s.do("replace", device) }

// Module loads a kernel module of that version under the library, which from then on
// only says that the two differ, unless the versions are the same again.
func (s *Sim) Module(version string) error { return s.do("module", version) }

// DriverRoot lays out dir as the root of the installed driver, with one device
// node per device (root only), and for MIG also the capability nodes and
// proc/driver/nvidia-caps/mig-minors.
func (s *Sim) DriverRoot(dir string, mig bool) error {
	if mig {
		return s.do("driver-root", dir, "--mig")
	}
	return s.do("driver-root", dir)
}

func (s *Sim) do(args ...string) error {
	_, err := s.ctl(args...)
	return err
}

func (s *Sim) ctl(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.Bin, "simgpuctl"), args...)
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+s.State)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("simgpuctl %s: %w: %s", args[0], err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}
