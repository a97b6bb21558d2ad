// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestParseResize(t *testing.T) {
	for line, want := range map[string]Resize{
		"4711 --core 40":                           {Session: "4711", Core: 40},
		"--mem-mib=2048 4711-99 --run-dir d":       {Session: "4711-99", Mem: 2048, RunDir: "d"},
		"4711 --core 1% --device " + uuid:          {Session: "4711", Core: 1, Device: uuid},
		"4711 --core 100 --device GPU" + upper[3:]: {Session: "4711", Core: 100, Device: uuid},
	} {
		if got, err := ParseResize(strings.Fields(line), io.Discard); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", line, got, err, want)
		}
	}
}

var upper = strings.ToUpper(uuid)

// TestParseResizeRefuses: an error names the flag and what to write instead.
func TestParseResizeRefuses(t *testing.T) {
	for line, want := range map[string][]string{
		"":                         {"want one session", "vgpu-run -- resize"},
		"--core 40":                {"want one session"},
		"4711 4712 --core 40":      {"want one session"},
		"../4711 --core 40":        {"want one session"},
		"4711":                     {"nothing to change", "--core", "--mem-mib"},
		"4711 --core 0":            {"--core", "1 to 100", "leave it out for what is in force"},
		"4711 --mem-mib 0":         {"--mem-mib", "leave it out for what is in force"},
		"4711 --mem-mib 2G":        {"--mem-mib", "write 2048"},
		"4711 --core 3 --device 0": {"--device", "nvidia-smi -L"},
		"4711 --burst":             {"--burst", "vgpu-run resize --help"},
	} {
		_, err := ParseResize(strings.Fields(line), io.Discard)
		for _, word := range want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v; want it to say %q", line, err, word)
			}
		}
	}
	var help strings.Builder
	if _, err := ParseResize([]string{"--help"}, &help); !errors.Is(err, ErrHelp) || !strings.Contains(help.String(), "--device UUID") {
		t.Errorf("%v; the usage is %s", err, help.String())
	}
}
