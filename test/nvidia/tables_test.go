// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/simgpu"
)

const limiterFolder = "../../vgpu-limiter"

var (
	hook = regexp.MustCompile(`(?m)^HOOK\((?:CUDA|NVML), (\w+),`)
	// form is what the drivers put behind a function's name.
	form = regexp.MustCompile(`(_v[0-9]+)?(_ptsz|_ptds)?$`)
	// told is what of NVML could say something of memory or processes, as the limiter's
	// own test has it.
	told = regexp.MustCompile(`^nvml.*(Memory|Process|Utilization|Accounting|Samples|BAR1|Pid)`)
	// nvmlName is a function of NVML's in a program that looks it up.
	nvmlName = regexp.MustCompile(`nvml[A-Z]\w+\x00`)
)

func base(symbol string) string { return form.ReplaceAllString(symbol, "") }

// decided is what the limiter intercepts, symbol by symbol, and what it leaves alone.
func decided(t *testing.T) (table, bases, left map[string]bool) {
	t.Helper()
	table, bases, left = map[string]bool{}, map[string]bool{}, map[string]bool{}
	def, err := os.ReadFile(filepath.Join(limiterFolder, "src/hooks.def"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range hook.FindAllSubmatch(def, -1) {
		table[string(found[1])], bases[base(string(found[1]))] = true, true
	}
	text, err := os.ReadFile(filepath.Join(limiterFolder, "tests/untouched.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "=") {
			for _, name := range strings.Fields(line) {
				left[name] = true
			}
		}
	}
	return table, bases, left
}

// exported are a library's symbols.
func exported(t *testing.T, library string) (all []string) {
	t.Helper()
	out, err := exec.Command("nm", "-D", "--defined-only", library).Output()
	if err != nil {
		t.Fatalf("%s: %v", library, err)
	}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.Fields(line)[2], "@")
		if strings.HasPrefix(name, "nvml") || len(name) > 2 && strings.HasPrefix(name, "cu") && name[2] < 'a' {
			all = append(all, name)
		}
	}
	if len(all) < 300 {
		t.Fatalf("%s exports %d functions", library, len(all))
	}
	return all
}

// Every function of the real drivers is intercepted, in this very form, or left alone
// for a reason.
func TestEveryFunctionIsDecided(t *testing.T) {
	table, bases, left := decided(t)
	each(t, func(t *testing.T, d driver) {
		for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			for _, symbol := range exported(t, filepath.Join(d.lib(), library)) {
				switch cuda := strings.HasPrefix(symbol, "cu"); {
				case table[symbol] || left[symbol] || !cuda && !told.MatchString(symbol):
				case cuda && bases[base(symbol)]:
					t.Errorf("%s: another form of it is intercepted, this one is not", symbol)
				case !left[base(symbol)]:
					t.Errorf("%s is neither in hooks.def nor in untouched.txt", symbol)
				}
			}
		}
	})
}

// notSimulated are the functions of NVML that the simulated one has not.
var notSimulated = []string{
	"nvmlGetBlacklistDeviceCount", "nvmlGetBlacklistDeviceInfoByIndex", // another name of what it has
}

// noSuchForms are what the limiter intercepts and the simulated libcuda has not: the
// forms of CUDA 3.1 and others that no header spells, graphics' and green contexts.
var noSuchForms = []string{
	"cuArray3DCreate", "cuArrayCreate", "cuCtxCreate", "cuCtxDestroy", "cuDeviceTotalMem", "cuMemAlloc",
	"cuMemAllocPitch", "cuMemGetInfo", "cuStreamDestroy",
	"cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2", "cuGreenCtxCreate", "cuGreenCtxDestroy",
}

// What the real NVML exports is in the simulated one; of CUDA, what the limiter
// intercepts.
func TestSimulatedLibrariesHaveTheFunctions(t *testing.T) {
	table, _, _ := decided(t)
	sim := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
	nvml, cuda := exported(t, filepath.Join(sim.Bin, "libnvidia-ml.so.1")), exported(t, filepath.Join(sim.Bin, "libcuda.so.1"))
	each(t, func(t *testing.T, d driver) {
		for _, symbol := range exported(t, filepath.Join(d.lib(), "libnvidia-ml.so.1")) {
			if !slices.Contains(nvml, symbol) && !slices.Contains(notSimulated, symbol) {
				t.Errorf("the simulated NVML has no %s", symbol)
			}
		}
		for _, symbol := range exported(t, filepath.Join(d.lib(), "libcuda.so.1")) {
			if table[symbol] && !slices.Contains(cuda, symbol) && !slices.Contains(noSuchForms, symbol) {
				t.Errorf("the simulated libcuda has no %s, which the limiter intercepts", symbol)
			}
		}
	})
}

// nvidia-smi looks its functions up by name. Each that tells memory or processes is
// known to the limiter. No name of a list of processes is among them: it gets those
// through NVML's private table, which the limiter does not see.
func TestNvidiaSMINames(t *testing.T) {
	table, _, left := decided(t)
	each(t, func(t *testing.T, d driver) {
		program, err := os.ReadFile(d.smi())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, name := range nvmlName.FindAllString(string(program), -1) {
			names = append(names, strings.TrimSuffix(name, "\x00"))
		}
		if len(names) < 200 || !slices.Contains(names, "nvmlDeviceGetMemoryInfo_v2") {
			t.Fatalf("it names %d functions", len(names))
		}
		for _, name := range names {
			if told.MatchString(name) && !table[name] && !left[base(name)] {
				t.Errorf("it looks %s up, which the limiter does not know", name)
			}
		}
		lists := slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "RunningProcesses") })
		if private := slices.Contains(names, "nvmlInternalGetExportTable"); lists || !private {
			t.Errorf("names a list of processes: %v, the private table: %v; vgpu-limiter/README.md says otherwise", lists, private)
		}
	})
}
