// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// A program finds every symbol that it would find in NVIDIA's libraries, and the libraries
// by the name without a version.
func TestEverySymbolIsExported(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: T4}}})
	for library, list := range map[string]string{"libcuda.so": "cuda/symbols.txt", "libnvidia-ml.so": "nvml/symbols.txt"} {
		f := must.Get(elf.Open(filepath.Join(s.Bin, library)))(t)
		defer f.Close()
		symbols := must.Get(f.DynamicSymbols())(t)
		exported := map[string]elf.Symbol{}
		for _, symbol := range symbols {
			if symbol.Section != elf.SHN_UNDEF {
				exported[symbol.Name] = symbol
			}
		}
		text := must.Get(os.ReadFile(list))(t)
		listed := 0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			listed++
			name, size, variable := strings.Cut(strings.TrimSpace(line), " ")
			symbol, ok := exported[name]
			switch kind := elf.ST_TYPE(symbol.Info); {
			case !ok:
				t.Errorf("%s does not export %s", library, name)
			case variable && (kind != elf.STT_OBJECT || strconv.FormatUint(symbol.Size, 10) != size):
				t.Errorf("%s exports %s as %v of %d bytes, want a variable of %s", library, name, kind, symbol.Size, size)
			case !variable && kind != elf.STT_FUNC:
				t.Errorf("%s exports %s as %v, want a function", library, name, kind)
			}
		}
		if listed < 300 {
			t.Errorf("%s lists %d symbols", list, listed)
		}
	}
}
