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

	"vernier.dev/vernier/test/must"
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
	def := must.Get(os.ReadFile(filepath.Join(limiterFolder, "src/runtime/hooks.def")))(t)
	for _, found := range hook.FindAllSubmatch(def, -1) {
		table[string(found[1])], bases[base(string(found[1]))] = true, true
	}
	text := must.Get(os.ReadFile(filepath.Join(limiterFolder, "tests/untouched.txt")))(t)
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

// The symbols that the simulated libraries are made of are all that the real ones export; a
// test of test/simgpu compares the simulated libraries with them.
func TestListsHaveEverySymbol(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		for library, list := range map[string]string{"libcuda.so.1": "cuda", "libnvidia-ml.so.1": "nvml"} {
			listed := simgpu.Symbols(t, list)
			for _, symbol := range exported(t, filepath.Join(d.lib(), library)) {
				if _, ok := listed[symbol]; !ok {
					t.Errorf("%s of %s is neither declared nor in test/simgpu/%s/symbols.txt", symbol, library, list)
				}
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
		program := must.Get(os.ReadFile(d.smi()))(t)
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
