// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

var (
	twin    = regexp.MustCompile(`_(ptsz|ptds)$`)
	version = regexp.MustCompile(`_v[0-9]+$`)
	// What of NVML could say something about memory or processes.
	told = regexp.MustCompile(`^nvml.*(Memory|Process|Utilization|Accounting|Samples|BAR1|Pid)`)
)

// base is a symbol's name without the suffixes for a default stream and a version.
func base(symbol string) string {
	return version.ReplaceAllString(twin.ReplaceAllString(symbol, ""), "")
}

// untouched reads untouched.txt: name to reason.
func untouched(t *testing.T) map[string]string {
	t.Helper()
	b := must.Get(os.ReadFile("untouched.txt"))(t)
	names, reason := map[string]string{}, ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if why, begins := strings.CutPrefix(line, "= "); begins {
			reason = why
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, name := range strings.Fields(line) {
			if names[name] != "" || reason == "" {
				t.Errorf("untouched.txt: %s is listed twice, or without a reason", name)
			}
			names[name] = reason
		}
	}
	return names
}

// TestEveryFunctionIsDecided: each function that the drivers export is in the table,
// in exactly this form, or left alone for a reason: a new form of a function of the
// table can't be forgotten, nor a function that is new altogether.
func TestEveryFunctionIsDecided(t *testing.T) {
	t.Parallel()
	b := must.Get(build())(t)
	table, bases := map[string]bool{}, map[string]bool{}
	for _, h := range hooks(t) {
		table[h.symbol] = true
		bases[base(h.symbol)] = true
	}
	left := untouched(t)
	for name := range left {
		if table[name] {
			t.Errorf("%s is in the table and in untouched.txt", name)
		}
	}
	seen := 0
	for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		for line := range strings.Lines(run(t, "nm", "-D", "--defined-only", filepath.Join(b.sim, library))) {
			symbol := strings.Fields(line)[2]
			cuda := strings.HasPrefix(symbol, "cu")
			if strings.HasPrefix(symbol, "cudbg") {
				continue // the debugger's
			}
			if table[symbol] || left[symbol] != "" || (!cuda && !told.MatchString(symbol)) {
				seen++
				continue
			}
			switch name := base(symbol); {
			case cuda && bases[name]:
				t.Errorf("%s: another form of %s is in the table, this one isn't", symbol, name)
			case left[name] == "":
				t.Errorf("%s is neither in hooks.def nor in untouched.txt", symbol)
			}
			seen++
		}
	}
	if seen < 500 {
		t.Errorf("the drivers export %d functions", seen)
	}
}
