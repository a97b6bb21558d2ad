// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/test/must"
)

// matrix is a row for each device and a letter for each other one.
func matrix(t *testing.T, lib nvml.Interface, letter func(a, b nvml.Device) string) string {
	t.Helper()
	n := value(lib.DeviceGetCount())(t)
	var rows []string
	for i := range n {
		var row strings.Builder
		for j := range n {
			if i == j {
				row.WriteString(".")
			} else {
				row.WriteString(letter(device(t, lib, i), device(t, lib, j)))
			}
		}
		rows = append(rows, row.String())
	}
	return strings.Join(rows, " ")
}

func TestTopology(t *testing.T) {
	levels := map[nvml.GpuTopologyLevel]string{
		nvml.TOPOLOGY_SINGLE: "p", nvml.TOPOLOGY_MULTIPLE: "m", nvml.TOPOLOGY_HOSTBRIDGE: "h",
		nvml.TOPOLOGY_NODE: "n", nvml.TOPOLOGY_SYSTEM: "s",
	}
	const two = "11111111-2222-3333-4444-555555555555.2"
	tests := []struct {
		name            string
		cfg             Config
		ancestors       string
		links           string // L linked, - not
		remote          string // of each device's first link: # a switch, the peer's index, - none
		fabric, cluster string // of the first device: state, UUID and clique
	}{
		{"HGX", Config{Template: HGX},
			".pnnssss p.nnssss nn.pssss nnp.ssss ssss.pnn ssssp.nn ssssnn.p ssssnnp.",
			".LLLLLLL L.LLLLLL LL.LLLLL LLL.LLLL LLLL.LLL LLLLL.LL LLLLLL.L LLLLLLL.",
			"########", "3", "00000000000000000000000000000000.0"},
		{"BridgedA100", Config{Template: BridgedA100}, ".nss n.ss ss.n ssn.", ".L-- L.-- --.L --L.", "1032", "", ""},
		{"SwitchedL40S", Config{Template: SwitchedL40S},
			".pppssss p.ppssss pp.pssss ppp.ssss ssss.ppp ssssp.pp sssspp.p ssssppp.",
			".------- -.------ --.----- ---.---- ----.--- -----.-- ------.- -------.",
			"--------", "", ""},
		{"Unlinked", Config{GPUs: []GPU{{Model: H100, Count: 2}}}, ".n n.", ".- -.", "--", "0", "00000000000000000000000000000000.0"},
		{"Cascade", Config{GPUs: []GPU{{Model: T4, PCIe: "0.1.0", Count: 2}, {Model: T4, PCIe: "0.1.1"}, {Model: T4, PCIe: "0.2"}, {Model: T4}}},
			".pmhn p.mhn mm.hn hhh.n nnnn.", ".---- -.--- --.-- ---.- ----.", "-----", "", ""},
		{"Chain", Config{GPUs: []GPU{{Model: A100, Count: 3}}, Bridges: []string{"0-1", "1-2"}}, ".nn n.n nn.", ".L- L.L -L.", "101", "", ""},
		{"Partitions", Config{GPUs: []GPU{{Model: H100, Switches: 2, Fabric: two}, {Model: H100, Switches: 2, Fabric: two[:37] + "3"}, {Model: H100, Switches: 2}}},
			".nn n.n nn.", ".-- -.- --.", "###", "3", "11111111222233334444555555555555.2"},
		{"FabricNotStarted", Config{GPUs: []GPU{{Model: H200, Switches: 4, Count: 2}}}, ".n n.", ".- -.", "##", "1", "00000000000000000000000000000000.0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lib := open(t, New(t, test.cfg))
			if got := matrix(t, lib, func(a, b nvml.Device) string {
				level := value(lib.DeviceGetTopologyCommonAncestor(a, b))(t)
				return levels[level]
			}); got != test.ancestors {
				t.Errorf("common ancestors %q, want %q", got, test.ancestors)
			}
			if got := matrix(t, lib, func(a, b nvml.Device) string {
				status := value(lib.DeviceGetP2PStatus(a, b, nvml.P2P_CAPS_INDEX_NVLINK))(t)
				if status == nvml.P2P_STATUS_OK {
					return "L"
				}
				return "-"
			}); got != test.links {
				t.Errorf("NVLinks %q, want %q", got, test.links)
			}
			if got := remotes(t, lib); got != test.remote {
				t.Errorf("other ends %q, want %q", got, test.remote)
			}
			wantFabric(t, device(t, lib, 0), test.fabric, test.cluster)
		})
	}
}

// remotes is a letter for each device: what its first link leads to.
func remotes(t *testing.T, lib nvml.Interface) string {
	n := value(lib.DeviceGetCount())(t)
	all := ""
	for i := range n {
		d := device(t, lib, i)
		state, ret := d.GetNvLinkState(0)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			_, ret = d.GetNvLinkRemotePciInfo(0)
			want(t, ret, nvml.ERROR_NOT_SUPPORTED)
			all += "-"
			continue
		}
		ok(t, ret)
		pci := value(d.GetNvLinkRemotePciInfo(0))(t)
		kind := value(d.GetNvLinkRemoteDeviceType(0))(t)
		p2p := value(d.GetNvLinkCapability(0, nvml.NVLINK_CAP_P2P_SUPPORTED))(t)
		if state != nvml.FEATURE_ENABLED || p2p != 1 {
			t.Errorf("device %d: link is %v, peers by it %d", i, state, p2p)
		}
		peer, ret := lib.DeviceGetHandleByPciBusId(text(pci.BusId[:]))
		if kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
			want(t, ret, nvml.ERROR_NOT_FOUND)
			all += "#"
			continue
		}
		ok(t, ret)
		index := value(peer.GetIndex())(t)
		all += string(rune('0' + index))
	}
	return all
}

func wantFabric(t *testing.T, d nvml.Device, state, cluster string) {
	t.Helper()
	info, ret := d.GetGpuFabricInfo()
	if state == "" {
		want(t, ret, nvml.ERROR_NOT_SUPPORTED)
		return
	}
	ok(t, ret)
	newer := value(d.GetGpuFabricInfoV().V2())(t)
	if newer.ClusterUuid != info.ClusterUuid || newer.CliqueId != info.CliqueId || newer.State != info.State {
		t.Errorf("fabric %+v, in the second version %+v", info, newer)
	}
	if got := string('0' + rune(info.State)); got != state {
		t.Errorf("fabric state %s, want %s", got, state)
	}
	if got := fmt.Sprintf("%x.%d", info.ClusterUuid, info.CliqueId); got != cluster {
		t.Errorf("fabric %s, want %s", got, cluster)
	}
}

// Links that are down link nothing, whichever end is asked.
func TestLinksDown(t *testing.T) {
	s := New(t, Config{Template: BridgedA100})
	lib := open(t, s)
	must.Do(t, s.Links("1", false))
	for i, down := range []bool{true, true, false, false} {
		state := value(device(t, lib, i).GetNvLinkState(11))(t)
		field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_GET_STATE, ScopeId: 11}}
		ok(t, device(t, lib, i).GetFieldValues(field))
		if (state == nvml.FEATURE_DISABLED) != down || (field[0].Value[0] == 0) != down || field[0].NvmlReturn != uint32(nvml.SUCCESS) {
			t.Errorf("device %d: link is %v, as a field %+v", i, state, field[0])
		}
	}
	status, ret := lib.DeviceGetP2PStatus(device(t, lib, 0), device(t, lib, 1), nvml.P2P_CAPS_INDEX_NVLINK)
	ok(t, ret)
	if status == nvml.P2P_STATUS_OK {
		t.Error("linked by links that are down")
	}
	must.Do(t, s.Links("1", true))
	if state, _ := device(t, lib, 0).GetNvLinkState(0); state != nvml.FEATURE_ENABLED {
		t.Errorf("up again: link is %v", state)
	}
	_, ret = device(t, lib, 0).GetNvLinkState(12)
	want(t, ret, nvml.ERROR_INVALID_ARGUMENT)
}

func TestCreateRefusesLinks(t *testing.T) {
	bin := New(t, Config{}).Bin
	for name, cfg := range map[string]Config{
		"unknown template":       {Template: "dgx-1"},
		"bridge without NVLink":  {GPUs: []GPU{{Model: L40S, Count: 2}}, Bridges: []string{"0-1"}},
		"bridge to nobody":       {GPUs: []GPU{{Model: A100, Count: 2}}, Bridges: []string{"0-2"}},
		"bridge beside a switch": {GPUs: []GPU{{Model: A100, Switches: 1, Count: 2}}, Bridges: []string{"0-1"}},
		"switch without NVLink":  {GPUs: []GPU{{Model: T4, Switches: 1}}},
		"fabric before Hopper":   {GPUs: []GPU{{Model: A100, Switches: 1, Fabric: "00000000-0000-0000-0000-000000000000.0"}}},
		"fabric without clique":  {GPUs: []GPU{{Model: H100, Switches: 1, Fabric: "00000000-0000-0000-0000-000000000000"}}},
		"fabric cut short":       {GPUs: []GPU{{Model: H100, Switches: 1, Fabric: "00000000-0000.0"}}},
		"PCIe path":              {GPUs: []GPU{{Model: T4, PCIe: "0.x"}}},
		"PCIe path too deep":     {GPUs: []GPU{{Model: T4, PCIe: "0.1.2.3.4"}}},
	} {
		if _, err := Create(bin, t.TempDir()+"/state", cfg); err == nil {
			t.Errorf("%s: created", name)
		}
	}
}
