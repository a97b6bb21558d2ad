// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

const uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"

func TestParse(t *testing.T) {
	all := Share{Core: 30, Mem: 1024}
	for line, want := range map[string]Options{
		"true":                                  {Command: []string{"true"}},
		"-- true --core 3":                      {Command: []string{"true", "--core", "3"}},
		"--core 30 --mem-mib 1024 --json -- a":  {Default: all, JSON: true, Command: []string{"a"}},
		"--core=30 --mem-mib=1024 --device 0 a": {Default: all, Devices: []Device{{"0", all}}, Command: []string{"a"}},
		"--device " + uuid + ",mem-mib=5,core=6 --device 1 --core 30 --mem-mib 1024 a": {
			Default: all, Devices: []Device{{uuid, Share{Core: 6, Mem: 5}}, {"1", all}}, Command: []string{"a"},
		},
		"--burst --core 30 --device 0 --device 1,core=5 a": {Default: Share{Core: 30, Burst: true}, Command: []string{"a"}, Devices: []Device{
			{"0", Share{Core: 30, Burst: true}}, {"1", Share{Core: 5, Burst: true}},
		}},
		"--core 30% a":                         {Default: Share{Core: 30}, Command: []string{"a"}},
		"--idle --device 0 --device 1,idle a":  {Default: Share{Idle: true}, Devices: []Device{{"0", Share{Idle: true}}, {"1", Share{Idle: true}}}, Command: []string{"a"}},
		"--device 0,burst,core=5 a":            {Devices: []Device{{"0", Share{Core: 5, Burst: true}}}, Command: []string{"a"}},
		"--report r --run-dir d --library l a": {Report: "r", RunDir: "d", Library: "l", Command: []string{"a"}},
	} {
		if got, err := Parse(strings.Fields(line), io.Discard); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", line, got, err, want)
		}
	}
}

// TestParseRefuses: an error names the flag and what to write instead.
func TestParseRefuses(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                      {"no command", "behind --"},
		"--core 30":                             {"no command"},
		"--core 0 a":                            {"--core", "1 to 100", "leave it out"},
		"--core 101 a":                          {"--core", "1 to 100"},
		"--core 2.5 a":                          {"--core", "whole number"},
		"--core -- a":                           {"--core"},
		"--mem-mib 0 a":                         {"--mem-mib", "leave it out"},
		"--mem-mib 1G a":                        {"--mem-mib", "MiB: write 1024"},
		"--mem-mib 268435456 a":                 {"--mem-mib"}, // 2^48 bytes
		"--idle --core 30 a":                    {"idle beside core", "leave one of them out"},
		"--idle --device 0,burst a":             {"--device 0", "idle beside core or burst"},
		"--device 0,idle=1 a":                   {`"idle=1"`, "want idle alone"},
		"--burst a":                             {"no compute quota", "--core"},
		"--device 0,burst a":                    {"--device 0", "no compute quota"},
		"--device 0,burst=1 a":                  {`"burst=1"`},
		"--mem-mib 1.5GiB a":                    {"--mem-mib", "write 1536"},
		"--mem-mib 30% a":                       {"--mem-mib", "MiB"},
		"--memory 3 a":                          {"--memory", "--mem-mib"},
		"--mem 1G a":                            {"--mem", "--mem-mib 1024"},
		"--gpus 1 a":                            {"--gpus", "--device 0"},
		"--cores 3 a":                           {"--cores", "--help"},
		"-core 30 a":                            {"-core", "two dashes"},
		"--device x a":                          {"--device", `"x"`, "nvidia-smi -L"},
		"--device -1 a":                         {"--device"},
		"--device MIG" + uuid[3:]:               {"--device", "MIG"},
		"--device 0,core a":                     {"--device", `"core"`, "1 to 100"},
		"--device 0,mem=3 a":                    {"--device", `"mem=3"`, "mem-mib=MIB"},
		"--device 0 --device 0 a":               {"--device 0", "twice"},
		strings.Repeat("--device 0 ", 17) + "a": {"17 times", "at most 16"},
	} {
		_, err := Parse(strings.Fields(line), io.Discard)
		for _, word := range want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v; want it to say %q", line, err, word)
			}
		}
	}
}

func TestHelp(t *testing.T) {
	var help strings.Builder
	_, err := Parse([]string{"--help"}, &help)
	if !errors.Is(err, ErrHelp) {
		t.Error(err)
	}
	for _, word := range []string{"tmux", "systemd-run", "docker", "sbatch", "STOP"} {
		if !strings.Contains(help.String(), word) {
			t.Errorf("the usage doesn't name %s", word)
		}
	}
	for _, name := range []string{"core", "burst", "idle", "mem-mib", "device", "json", "report", "run-dir", "library"} {
		if !strings.Contains(help.String(), "\n  --"+name) {
			t.Errorf("the usage has no --%s", name)
		}
	}
}
