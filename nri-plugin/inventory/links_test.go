// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// maxTopology is how many bytes the sets of a node with eight GPUs may take in the ledger.
const maxTopology = 200

func TestTopology(t *testing.T) {
	const fabric = "11111111-2222-3333-4444-555555555555.2"
	h100 := func(fabric string, n int) simgpu.GPU {
		return simgpu.GPU{Model: simgpu.H100, Switches: 2, Fabric: fabric, Count: n}
	}
	// The dynamic linker binds a function to the library that was loaded first. Were that an older
	// driver's, the newest one's own functions would not know its devices.
	t.Run("newest driver first", func(t *testing.T) { open(t, simgpu.New(t, simgpu.Config{Template: simgpu.HGX}), Options{}) })
	for name, c := range map[string]struct {
		config simgpu.Config
		want   string
	}{
		"HGX": {simgpu.Config{Template: simgpu.HGX},
			`{"numa":["0-3","4-7"],"pcie":["0-1","2-3","4-5","6-7"],"nvlink":["0-7"]}`},
		"HGX, older driver": {simgpu.Config{Template: simgpu.HGX, Driver: simgpu.Driver535},
			`{"numa":["0-3","4-7"],"pcie":["0-1","2-3","4-5","6-7"],"nvlink":["0-7"]}`},
		"pairs with a bridge": {simgpu.Config{Template: simgpu.BridgedA100},
			`{"numa":["0-1","2-3"],"nvlink":["0-1","2-3"]}`},
		"two PCIe switches": {simgpu.Config{Template: simgpu.SwitchedL40S},
			`{"numa":["0-3","4-7"],"pcie":["0-3","4-7"]}`},
		"one device": {simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.T4, NUMA: 1}}},
			`{"numa":["0"]}`},
		"switch behind a switch": {simgpu.Config{GPUs: []simgpu.GPU{
			{Model: simgpu.T4, PCIe: "0.1.0", Count: 2}, {Model: simgpu.T4, PCIe: "0.1.1"}, {Model: simgpu.T4, PCIe: "0.2"}}},
			`{"numa":["0-3"],"pcie":["0-2"]}`},
		"links in a chain": {simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 3}}, Bridges: []string{"0-1", "1-2"}},
			`{"numa":["0-2"],"nvlink":["0-1","1-2"]}`},
		"switches before Hopper": {simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Switches: 2, Count: 4}}},
			`{"numa":["0-3"],"nvlink":["0-3"]}`},
		"fabric that has not started": {simgpu.Config{GPUs: []simgpu.GPU{h100("", 2)}}, `{"numa":["0-1"]}`},
		"fabric of several nodes": {simgpu.Config{GPUs: []simgpu.GPU{h100(fabric, 4)}},
			`{"numa":["0-3"],"nvlink":["0-3"],"fabric":"` + fabric + `"}`},
		"partitions of a fabric": {simgpu.Config{GPUs: []simgpu.GPU{h100(fabric, 2), h100(fabric[:37]+"3", 2)}},
			`{"numa":["0-3"],"nvlink":["0-1","2-3"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(json.Marshal(scan(t, open(t, simgpu.New(t, c.config), Options{})).Topology))(t)
			if string(got) != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if len(got) > maxTopology {
				t.Errorf("%d bytes, want %d at most", len(got), maxTopology)
			}
		})
	}
}

// A link that goes down changes the sets at the next scan, as does a device that is lost.
func TestTopologyFollowsLinks(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{Template: simgpu.HGX})
	inv := open(t, s, Options{})
	for _, step := range []struct {
		what string
		do   func() error
		want string
	}{
		{"all are there", func() error { return nil }, "0-7"},
		{"the links of one are down", func() error { return s.Links("2", false) }, "0-1,3-7"},
		{"they are up again", func() error { return s.Links("2", true) }, "0-7"},
		{"one is lost", func() error { return s.Lose("7") }, "0-6"},
	} {
		must.Do(t, step.do())
		got := scan(t, inv).Topology
		if got == nil || len(got.NVLink) != 1 || string(got.NVLink[0]) != step.want {
			t.Errorf("%s: %+v, want %s", step.what, got, step.want)
		}
	}
}

// What links lead to decides where the driver would say of any two devices that they are peers.
func TestLinked(t *testing.T) {
	direct := func(own uint32, remote ...uint32) links {
		l := links{own: place{bus: own}, remote: map[place]bool{}}
		for _, bus := range remote {
			l.remote[place{bus: bus}] = true
		}
		return l
	}
	switched := func(f fabric) links { return links{switched: true, fabric: f} }
	up, other := fabric{completed: true, clique: 1}, fabric{completed: true, clique: 2}
	for name, c := range map[string]struct {
		a, b links
		want bool
	}{
		"direct":                {direct(1, 2), direct(2, 1), true},
		"only one end is up":    {direct(1, 2), direct(2), false},
		"to a third":            {direct(1, 3), direct(2, 3), false},
		"switches":              {switched(up), switched(up), true},
		"two fabrics":           {switched(up), switched(other), false},
		"fabric not set up":     {switched(fabric{clique: 1}), switched(fabric{clique: 1}), false},
		"only one has switches": {switched(up), direct(2), false},
	} {
		if got := linked(&c.a, &c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Links that are up are no way where the driver says that two devices are no peers.
func TestPeers(t *testing.T) {
	status := nvml.P2P_STATUS_OK
	a := &unit{handle: &mock.Device{GetP2PStatusFunc: func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		return status, nvml.SUCCESS
	}}}
	inv := &Inventory{symbols: map[string]bool{symbolP2P: true}}
	if !inv.peers(a, a) {
		t.Error("no peers, and the driver says that they are")
	}
	if status = nvml.P2P_STATUS_DISABLED_BY_REGKEY; inv.peers(a, a) {
		t.Error("peers, and the driver says that they are not")
	}
	// A driver without the call is not asked.
	if status, inv.symbols = nvml.P2P_STATUS_OK, nil; inv.peers(a, a) {
		t.Error("peers, and the driver can't say so")
	}
}

// A device whose firmware hangs is not asked about each of its links: it holds up every call.
func TestLinksOfSilentDevice(t *testing.T) {
	asked := 0
	u := &unit{handle: &mock.Device{
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{Bus: 1}, nvml.SUCCESS },
		GetNvLinkStateFunc: func(int) (nvml.EnableState, nvml.Return) {
			asked++
			return nvml.FEATURE_DISABLED, nvml.ERROR_TIMEOUT
		},
	}}
	inv := &Inventory{symbols: map[string]bool{symbolLinkState: true, symbolLinkRemote: true}}
	if l := inv.links(u); asked != 1 || l.switched || len(l.remote) > 0 {
		t.Errorf("%+v after %d calls", l, asked)
	}
}
