// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	api "vernier.dev/vernier/api/v1alpha1"
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
	f.see(ledger("a", 100, 200))
	expect("one node", Size{GPUs: 2, Mem: 200})
	f.see(ledger("b", 800))
	expect("the most of each", Size{GPUs: 2, Mem: 800})
	f.see(ledger("b", 150))
	expect("a node that shrank", Size{GPUs: 2, Mem: 200})
	f.forget(ledger("a"))
	expect("a node that went", Size{GPUs: 1, Mem: 150})
	f.forget(cache.DeletedFinalStateUnknown{Key: "b", Obj: ledger("b")})
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

func TestSlim(t *testing.T) {
	l := ledger("a", 100)
	l.Spec.Devices = []api.DeviceLedger{{UUID: "x"}}
	l.Status.Released = append(l.Status.Released, "uid")
	if _, err := Slim(l); err != nil {
		t.Fatal(err)
	}
	if len(l.Spec.Devices) != 0 || len(l.Status.Released) != 0 || len(l.Status.Devices) != 1 {
		t.Errorf("kept %+v", l)
	}
}
