// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

func ledger(node string, mem ...api.MiB) *api.SliceLedger {
	l := &api.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, m := range mem {
		l.Status.Devices = append(l.Status.Devices, api.DeviceStatus{Mem: m})
	}
	return l
}

func TestSize(t *testing.T) {
	var f Fleet
	expect := func(what string, want Size) {
		t.Helper()
		if got := f.Size(); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	expect("nothing known", Size{})
	f.see(slim(t, ledger("a", 100, 200)))
	expect("one node", Size{GPUs: 2, Mem: 200})
	linked := ledger("c", 100, 100, 100)
	linked.Status.Topology = &api.TopologyStatus{NUMA: []api.DeviceSet{"0", "1-2"}, PCIe: []api.DeviceSet{"0-9"}, NVLink: []api.DeviceSet{"0-1", "0,2", "0-2"}}
	linked.Status.Devices[2].NICs = []string{"mlx5_0"}
	f.see(slim(t, linked))
	expect("near each other", Size{GPUs: 3, Mem: 200, NUMA: 2, NVLink: 3, RDMA: 1})
	f.forget(slim(t, linked))
	f.see(slim(t, ledger("b", 800)))
	expect("the most of each", Size{GPUs: 2, Mem: 800})
	f.see(slim(t, ledger("b", 150)))
	expect("a node that shrank", Size{GPUs: 2, Mem: 200})
	f.forget(slim(t, ledger("a")))
	expect("a node that went", Size{GPUs: 1, Mem: 150})
	f.forget(cache.DeletedFinalStateUnknown{Key: "b", Obj: slim(t, ledger("b"))})
	expect("the last that went", Size{})
}

func TestWarning(t *testing.T) {
	size := Size{GPUs: 4, Mem: 81920}
	for _, tt := range []struct {
		size  Size
		share api.Share
		want  string
	}{
		{size, api.Share{GPUs: 4, MemMiB: 81920}, ""},
		{size, api.Share{GPUs: 5, MemPercent: 1}, "needs 5 GPUs on one node, and no node has more than 4"},
		{size, api.Share{GPUs: 1, MemMiB: 81921}, "needs 81921 MiB on one GPU, and no GPU has more than 81920"},
		{Size{}, api.Share{GPUs: 32, MemMiB: 1 << 40}, ""},
	} {
		if got := tt.size.Warning(tt.share); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%+v in %+v: %q, want %q", tt.share, tt.size, got, tt.want)
		}
	}
}

// slim is the ledger as the cache has it.
func slim(t testing.TB, l *api.SliceLedger) any {
	t.Helper()
	return must.Get(Slim(l))(t)
}

// The cache has no ledger, and what it has is found by the ledger's name and version.
func TestSlim(t *testing.T) {
	l := ledger("a", 100)
	l.ResourceVersion = "7"
	kept, is := slim(t, l).(*node)
	if !is || kept.GetName() != "a" || kept.GetResourceVersion() != "7" || kept.size.Mem != 100 {
		t.Errorf("kept %+v", kept)
	}
	if again := must.Get(Slim(kept))(t); again != any(kept) {
		t.Errorf("the second time %+v", again)
	}
}

func allow(t *testing.T, text string) api.AllowList {
	t.Helper()
	return must.Get(api.ParseAllowList(text))(t)
}

// What no GPU has is named, and where none is left the pod waits.
func TestLists(t *testing.T) {
	const one, two, gone = "GPU-5e1b0f6c-1c0a-4d53-a3c5-3f0e6a1e2b77", "GPU-00000000-0000-0000-0000-000000000002", "GPU-00000000-0000-0000-0000-00000000000F"
	var f Fleet
	if text := f.Models(allow(t, "H100")) + f.UUIDs(allow(t, one)); text != "" {
		t.Errorf("nothing known: %q", text)
	}
	a, b := ledger("a", 100, 100), ledger("b", 100)
	a.Status.Devices[0].Model, a.Status.Devices[0].UUID = "NVIDIA A100-SXM4-80GB", one
	a.Status.Devices[1].Model, a.Status.Devices[1].UUID = "NVIDIA A100-SXM4-80GB", two
	b.Status.Devices[0].Model, b.Status.Devices[0].UUID = "Tesla T4", gone
	f.see(slim(t, a))
	f.see(slim(t, b))
	f.see(slim(t, b))
	const have = "there are 2 x NVIDIA A100-SXM4-80GB, 1 x Tesla T4"
	const waits = ": the pod waits until there is one that it may use"
	models := func(list, want string) {
		t.Helper()
		if got := f.Models(allow(t, list)); got != want {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
	uuids := func(list, want string) {
		t.Helper()
		if got := f.UUIDs(allow(t, list)); got != want {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
	models("", "")
	models("A100,T4", "")
	models("!T4", "")
	models("!H100", "")
	models("H1000", "no GPU is H1000, "+have+waits)
	models("A100,H1000,B200", "no GPU is H1000, B200, "+have)
	models("!A100,!T4", "no GPU is allowed, "+have+waits)
	models("T4,!Tesla", "no GPU is allowed, "+have+waits)
	uuids(strings.ToLower(one)+","+two, "")
	uuids("GPU-5e1b0f6c", "")
	uuids(gone, "")
	f.forget(slim(t, b))
	uuids(gone, "no GPU is "+gone+waits)
	uuids(gone+","+one, "no GPU is "+gone)
	uuids("!"+gone, "")
	models("T4", "no GPU is T4, there are 2 x NVIDIA A100-SXM4-80GB"+waits)
	a.Status.Devices[1].UUID = gone
	f.see(slim(t, a))
	uuids(two, "no GPU is "+two+waits)
	f.forget(slim(t, a))
	if len(f.models)+len(f.uuids)+len(f.nodes) > 0 {
		t.Errorf("kept %v %v %v", f.models, f.uuids, f.nodes)
	}
}
