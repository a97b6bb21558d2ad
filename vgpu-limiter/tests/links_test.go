// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// TestLinksAsWithout: peers, links, the fabric, multicast and what is shared by them are
// answered as without the library, between the devices of the container; those that it hasn't
// are no more to be found than without.
func TestLinksAsWithout(t *testing.T) {
	t.Parallel()
	const alone, many = "00000000-0000-0000-0000-000000000000.0", "11111111-2222-3333-4444-555555555555.7"
	hgx := []string{"--template", "hgx-h100-8"}
	tests := []struct {
		name    string
		create  []string
		devices int
		has     []int    // devices of the container, nil for all
		say     []string // among what is said without the library
	}{
		{"Switched", hgx, 8, nil, []string{"can_access 0 7: 0 1", "p2p 0 7 3: 0 1", "attribute 0 132: 0 1", "add 7: 0", "bind 7: 0",
			"map_object 0", "create_fabric 0: 800", "ancestor 0 1: 0 10", "ancestor 0 7: 0 50", "p2p_status 0 7 2: 0 0",
			"link_state 0 17: 0 1", "link_remote 0 1: 0 00000000:C1:00.0 22a310de", "link_type 0 0: 0 2", "nearest 0 10: 0 1, 1 0"}},
		{"SwitchedPart", hgx, 8, []int{2, 3, 6}, []string{"count 0 3", "shown 0 3", "can_access 0 2: 0 1", "ancestor 0 1: 0 10",
			"ancestor 0 2: 0 50", "nearest 0 50: 0 1, 2 0", "link_state 2 0: 0 1", "add 2: 0", "by_address 00000000:07:00.0: 6 99"}},
		{"Bridged", []string{"--template", "a100-bridged-4"}, 4, nil, []string{"p2p 0 1 3: 0 1", "p2p 1 2 3: 0 0", "attribute 0 132: 0 0",
			"add 0: 801", "p2p_status 0 1 2: 0 0", "p2p_status 1 2 2: 0 5", "link_remote 0 0: 0 00000000:0F:00.0 20b210de", "fabric 0: 3 "}},
		// The other end of a link is told, though it isn't the container's.
		{"BridgedPart", []string{"--template", "a100-bridged-4"}, 4, []int{0, 2}, []string{"p2p_status 0 1 2: 0 5", "link_state 0 0: 0 1",
			"link_remote 0 0: 0 00000000:0F:00.0 20b210de", "by_address 00000000:0f:00.0: 6 99"}},
		{"BehindPCIeSwitches", []string{"--template", "l40s-8"}, 8, nil, []string{"can_access 0 7: 0 1", "p2p_status 0 1 2: 0 5",
			"ancestor 0 3: 0 10", "ancestor 3 4: 0 50", "link_state 0 0: 3 99"}},
		{"Unlinked", []string{"--gpu", "H100-80GB"}, 1, nil, []string{"can_access 0 0: 0 0", "p2p 0 0 1: 101 -1", "attribute 0 132: 0 0",
			"attribute 0 128: 0 1", "link_state 0 0: 3 99", "ancestor 0 0: 3 99"}},
		{"Partitions", []string{"--gpu", "H100-80GB,switch=2,fabric=" + alone, "--gpu", "H100-80GB,switch=2,fabric=" + many}, 2, nil,
			[]string{"p2p_status 0 1 2: 0 5", "create_fabric 0: 800", "create_fabric 1: 0"}},
		{"FabricOfMachines", []string{"--gpu", "H100-80GB,count=2,switch=2,fabric=" + many}, 2, nil,
			[]string{"create_fabric 1: 0", "export_fabric 1: 0", "import_fabric 1: 0"}},
	}
	for _, test := range tests {
		for _, how := range []string{"linked", "lookup"} {
			t.Run(test.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				shares := make([]share, test.devices)
				for i := range shares {
					if test.has == nil || slices.Contains(test.has, i) {
						shares[i] = share{50, 1024}
					}
				}
				c := newContainerWith(t, test.create, shares...)
				environment := c.nodes(test.has)
				args := []string{how}
				for i := range shares {
					args = append(args, c.status(i, "bus"))
				}
				native, limited := c.command("", "links", args...), c.command("libvgpu-test.so", "links", args...)
				native.Env, limited.Env = append(native.Env, environment...), append(limited.Env, environment...)
				want, err := native.CombinedOutput()
				if err != nil {
					t.Fatalf("without the library: %v\n%s", err, want)
				}
				got, err := limited.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, got)
				}
				lines, answers := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
				for _, line := range test.say {
					if !slices.Contains(lines, line) {
						t.Errorf("without the library no answer is %q", line)
					}
				}
				for i, line := range lines {
					if i >= len(answers) || answers[i] != line {
						t.Fatalf("line %d of %d: %q, without the library %q", i, len(lines), answers[min(i, len(answers)-1)], line)
					}
				}
			})
		}
	}
}

// nodes is the environment in which the nodes of these devices alone are there.
func (c *container) nodes(devices []int) []string {
	c.t.Helper()
	if devices == nil {
		return nil
	}
	root := c.t.TempDir()
	must.Do(c.t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	for _, i := range devices {
		must.Do(c.t, os.WriteFile(filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", i)), nil, 0o600))
	}
	return []string{"SIMGPU_ALL_DEVICES=0", "SIMGPU_DEVROOT=" + root}
}
