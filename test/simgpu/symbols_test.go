// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"debug/elf"
	"path/filepath"
	"strconv"
	"testing"

	"vernier.dev/vernier/test/must"
)

// A program finds every symbol that it would find in NVIDIA's libraries, and the libraries
// by the name without a version.
func TestEverySymbolIsExported(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: T4}}})
	for library, name := range map[string]string{"cuda": "libcuda.so", "nvml": "libnvidia-ml.so"} {
		f := must.Get(elf.Open(filepath.Join(s.Bin, name)))(t)
		defer f.Close()
		exported := map[string]elf.Symbol{}
		for _, symbol := range must.Get(f.DynamicSymbols())(t) {
			if symbol.Section != elf.SHN_UNDEF {
				exported[symbol.Name] = symbol
			}
		}
		wanted := Symbols(t, library)
		for name, size := range wanted {
			symbol, ok := exported[name]
			switch kind := elf.ST_TYPE(symbol.Info); {
			case !ok:
				t.Errorf("%s does not export %s", library, name)
			case size != "" && (kind != elf.STT_OBJECT || strconv.FormatUint(symbol.Size, 10) != size):
				t.Errorf("%s exports %s as %v of %d bytes, want a variable of %s", library, name, kind, symbol.Size, size)
			case size == "" && kind != elf.STT_FUNC:
				t.Errorf("%s exports %s as %v, want a function", library, name, kind)
			}
		}
		if len(wanted) < 350 {
			t.Errorf("%s: only %d symbols are known", library, len(wanted))
		}
	}
}
