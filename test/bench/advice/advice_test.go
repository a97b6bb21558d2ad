// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/test/bench/usage"
	"vernier.dev/vernier/test/must"
)

const head = "t_s,pod,duty_percent,memory_mib\n"

// write makes a folder with a trace.
func write(t *testing.T, text string) string {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	must.Get(w.Write([]byte(text)))(t)
	must.Do(t, w.Close())
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "pods.csv.gz"), packed.Bytes(), 0o600))
	return folder
}

// small has a pod that stays as it is, one that grows in the second half, and one that begins in it.
func small(t *testing.T) []*pod {
	var text strings.Builder
	text.WriteString(head)
	for i := range 1000 {
		at := 57 * i
		grown, mem := 0, "10240"
		if i >= 500 {
			grown = 2048
			fmt.Fprintf(&text, "%d,new,90,20480\n", at)
		}
		if i%10 == 9 {
			mem = "" // as before
		}
		fmt.Fprintf(&text, "%d,same,%d,%s\n%d,more,20,%d\n", at, i%20, mem, at, 10240+grown)
	}
	return halve(must.Get(usage.Load(write(t, text.String())))(t))
}

// The figures can be worked out by hand: 15 % of 10,240 MiB do not reach the 12,288 MiB of one pod, nor the
// 20,480 of the new one.
func TestEvaluate(t *testing.T) {
	pods := small(t)
	each := [][]*pod{{pods[0]}, {pods[1]}, {pods[2]}}
	for _, tt := range []struct {
		rule      int
		workloads [][]*pod
		given     advice.Amount
		want      result
	}{
		{0, [][]*pod{pods}, advice.Amount{Core: 100, Mem: 81_920}, result{pods: 3, samples: 1500}},
		// No spread: the peak and 10 %. 98 % of the time used 20 % or less.
		{1, [][]*pod{pods}, advice.Amount{Core: 23, Mem: 11_264}, result{pods: 3, refused: 2, refusals: 1000, samples: 1500, limited: 500}},
		{2, [][]*pod{pods}, advice.Amount{Core: 23, Mem: 11_776}, result{pods: 3, refused: 2, refusals: 1000, samples: 1500, limited: 500}},
		// It gives more after the first refusal.
		{3, [][]*pod{pods}, advice.Amount{Core: 23, Mem: 11_776}, result{pods: 3, refused: 2, refusals: 2, samples: 1500, limited: 500}},
		// A pod without a first half is not judged alone.
		{1, each, advice.Amount{}, result{pods: 2, refused: 1, refusals: 500, samples: 1000}},
	} {
		by := rules[tt.rule]
		got := evaluate(tt.workloads, requests[0], by)
		if len(tt.workloads) == 1 {
			if given := by.advise(pods, device); given != tt.given {
				t.Errorf("%s: advises %v, want %v", by.name, given, tt.given)
			}
			if n := len(pods); int(got.freed.Mem) != n*int(device.Mem-tt.given.Mem) || int(got.freed.Core) != n*int(device.Core-tt.given.Core) {
				t.Errorf("%s: freed %v", by.name, got.freed)
			}
		}
		got.freed, got.requested = advice.Amount{}, advice.Amount{}
		if got != tt.want {
			t.Errorf("%s: got %+v, want %+v", by.name, got, tt.want)
		}
	}
}

func TestShow_IsTheSameEachTime(t *testing.T) {
	var once, twice bytes.Buffer
	show(&once, small(t))
	show(&twice, small(t))
	if once.String() != twice.String() || strings.Count(once.String(), "\n") != 2+2*len(requests)*len(rules) {
		t.Errorf("%s\nthen\n%s", once.String(), twice.String())
	}
	if want := "| the workload | 80 GiB | Vernier | 3 | 69.0 (86 %) | 2 (1000 times) | 77 | 33.33 |\n"; !strings.Contains(once.String(), want) {
		t.Errorf("no %s in\n%s", want, once.String())
	}
}

func TestLoad_WhenATraceIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"t,pod\n":                 "line 1: the columns",
		head + "1,a,101,5\n":      "line 2: column 3",
		head + "1,a,NaN,5\n":      "line 2: column 3",
		head + "1,a,5,\n-1,a,,\n": "line 3: column 1",
		head + "1,a,5,1e30\n":     "line 2: column 4",
		head + "1,a\n":            "wrong number of fields",
	} {
		if _, err := usage.Load(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
