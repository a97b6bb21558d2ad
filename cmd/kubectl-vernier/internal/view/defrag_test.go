// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// shared is a node with GPUs of one model, each with a slice of the given percent
// and as much of its 1000 MiB; none where it is 0. Slices are of pods of their own,
// but for those that are named.
func shared(node, model string, parts map[string]v1alpha1.Percent, pods map[string]string) v1alpha1.SliceLedger {
	l := v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: v1alpha1.SliceLedgerStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}}}
	for i, uuid := range []string{node + "-0", node + "-1"} {
		part, there := parts[uuid]
		if !there {
			continue
		}
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(i), Model: model, Mem: 1000, Healthy: true})
		if part == 0 {
			continue
		}
		pod := pods[uuid]
		if pod == "" {
			pod = "pod-" + uuid
		}
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{
			{Pod: types.UID(pod), Owner: "ns/" + pod, Ctr: "main", Core: part, Mem: 10 * v1alpha1.MiB(part)}}})
	}
	return l
}

func TestDefrag(t *testing.T) {
	all := []v1alpha1.SliceLedger{
		shared("a", "A100", map[string]v1alpha1.Percent{"a-0": 30, "a-1": 90}, nil),
		shared("b", "A100", map[string]v1alpha1.Percent{"b-0": 60, "b-1": 0}, nil),
		shared("c", "T4", map[string]v1alpha1.Percent{"c-0": 20, "c-1": 20}, map[string]string{"c-0": "both", "c-1": "both"}),
		shared("d", "A100", map[string]v1alpha1.Percent{"d-0": 100}, nil),
	}
	type row struct {
		uuid     string
		freeable bool
		to, why  string
	}
	var got []row
	for _, f := range Defrag(all) {
		got = append(got, row{f.UUID, f.Freeable, f.Holders[0].To, f.Holders[0].Why})
	}
	want := []row{
		{"a-0", true, "b GPU 0", ""},
		{"b-0", true, "a GPU 0", ""},
		{"c-0", false, "", "it has slices of 2 GPUs"},
		{"c-1", false, "", "it has slices of 2 GPUs"},
		{"a-1", false, "", "no other GPU of its model in use has the room"}, // an empty one would do, and nothing would be freed
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: %+v, want %+v", i, got[i], want[i])
		}
	}
	if table := DefragTable(Defrag(all)); len(table.rows) != 5 || table.rows[0][9] != "b GPU 0" || table.rows[4][9] != "-: no other GPU of its model in use has the room" {
		t.Errorf("%v", table.rows)
	}
}

// What is on an instance of MIG goes to another instance, and nowhere else.
func TestDefragOfMIG(t *testing.T) {
	cut := func(node string, starts ...int32) v1alpha1.SliceLedger {
		l := shared(node, "H200", map[string]v1alpha1.Percent{node + "-0": 0}, nil)
		d := &l.Status.Devices[0]
		d.MIG, d.Profiles = v1alpha1.MIGEnabled, []v1alpha1.MIGProfile{{ID: 9, Core: 42, Mem: 500, Size: 4, Starts: []int32{0, 4}, Max: 2}}
		granted := v1alpha1.DeviceLedger{UUID: d.UUID, Core: 100, Mem: 1000}
		for _, start := range starts {
			pod := fmt.Sprintf("%s-%d", node, start)
			granted.Slices = append(granted.Slices, v1alpha1.Slice{Pod: types.UID(pod), Owner: "ns/" + pod, Ctr: "main", Core: 42, Mem: 500,
				Mode: v1alpha1.ModeMIG, MIG: &v1alpha1.MIGPlace{Profile: 9, Start: start, Size: 4}})
		}
		l.Spec.Devices = append(l.Spec.Devices, granted)
		return l
	}
	half := shared("plain", "H200", map[string]v1alpha1.Percent{"plain-0": 10}, nil)
	for name, tt := range map[string]struct {
		other v1alpha1.SliceLedger
		to    string
	}{
		"room on an instance": {cut("b", 4), "b GPU 0"},
		"all instances taken": {cut("b", 0, 4), ""},
		"no MIG elsewhere":    {half, ""},
	} {
		for _, f := range Defrag([]v1alpha1.SliceLedger{cut("a", 0), tt.other}) {
			if f.Node == "a" && (f.Holders[0].To != tt.to || f.Freeable != (tt.to != "")) {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
	if fragments := Defrag([]v1alpha1.SliceLedger{half, cut("b", 0)}); len(fragments) != 2 || fragments[0].Holders[0].To != "" {
		t.Errorf("a limiter's slice on an instance: %+v", fragments)
	}
}

// Room that one pod would take is not there for the next.
func TestDefragTakesRoomOnce(t *testing.T) {
	busy := shared("a", "A100", map[string]v1alpha1.Percent{"a-0": 30}, nil)
	busy.Spec.Devices[0].Slices = append(busy.Spec.Devices[0].Slices, v1alpha1.Slice{Pod: "second", Owner: "ns/second", Ctr: "main", Core: 30, Mem: 300})
	all := []v1alpha1.SliceLedger{busy, shared("b", "A100", map[string]v1alpha1.Percent{"b-0": 60}, nil)}
	for _, f := range Defrag(all) {
		if f.UUID == "a-0" && (f.Freeable || f.Holders[0].To != "b GPU 0" || f.Holders[1].To != "") {
			t.Errorf("%+v", f)
		}
	}
}
