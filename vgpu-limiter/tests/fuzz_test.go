// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzLookups asks the same random questions with and without the library. Every
// function of the table that the driver hands out is handed out as the library's,
// in the same form; everything else, errors and statuses too, comes as it came.
func FuzzLookups(f *testing.F) {
	for seed := range uint64(3) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		c := newContainer(t, share{0, 100})
		table := map[string]bool{}
		var names []string
		for _, h := range hooks(t) {
			table[h.symbol] = true
			names = append(names, h.symbol, base(h.symbol))
		}
		for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			for line := range strings.Lines(run(t, "nm", "-D", "--defined-only", filepath.Join(c.sim, library))) {
				names = append(names, strings.Fields(line)[2])
			}
		}
		names = append(names, "dlsym", "dlvsym", "dlopen", "malloc", "cu", "nvml")
		path := filepath.Join(c.dir, "names")
		if err := os.WriteFile(path, []byte(strings.Join(names, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		ask := func(preload string) []string {
			out, err := c.command(preload, "fuzz", fmt.Sprint(seed), "20000", path).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			return strings.Split(strings.TrimSpace(string(out)), "\n")
		}
		native, limited := ask(""), ask("libvgpu-test.so")
		if len(native) != 20000 || len(limited) != len(native) {
			t.Fatalf("%d answers natively, %d limited", len(native), len(limited))
		}
		ours := 0
		for i := range native {
			n, l := strings.Fields(native[i]), strings.Fields(limited[i])
			if len(n) != 4 || len(l) != 4 || n[0] != l[0] || n[1] != l[1] {
				t.Fatalf("natively %q, limited %q", native[i], limited[i])
			}
			// The simulated driver has one address for both kinds of default stream.
			either := strings.NewReplacer("_ptsz", "", "_ptds", "")
			switch {
			case n[1] == "dlsym" || n[1] == "dlvsym":
			case table[n[3]] && (strings.HasPrefix(n[2], "libcuda") || strings.HasPrefix(n[2], "libnvidia-ml")):
				ours++
				if l[2] != "libvgpu-test.so" || either.Replace(l[3]) != either.Replace(n[3]) {
					t.Fatalf("natively %q, limited %q", native[i], limited[i])
				}
			case n[0] == "default" && table[n[1]] && n[2] == "none" && l[2] == "libvgpu-test.so":
				// Natively not in the caller's scope; see dlsym.c.
			case native[i] != limited[i]:
				t.Fatalf("natively %q, limited %q", native[i], limited[i])
			}
		}
		if ours < 1000 {
			t.Errorf("%d lookups of functions of the table", ours)
		}
	})
}
