// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"testing"
	"time"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// A pod with slices on a device in MIG mode stays at the gate until its node shows the
// instance, or for so long that something must be wrong there. It takes room on the
// node meanwhile, as far as the scheduler looks.
func TestPrepared(t *testing.T) {
	place := v1alpha1.MIGPlace{Profile: 19, Start: 0, Size: 1}
	for name, ready := range map[string]func(*stage){
		"the instance shows": func(s *stage) {
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
				st.Devices[0].Instances = []v1alpha1.MIGInstance{{MIGPlace: place, UUID: "MIG-1", Own: true}}
			})
		},
		"the node does not get it done": func(s *stage) { s.pass(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
				d := &st.Devices[0]
				d.MIG = v1alpha1.MIGEnabled
				d.Profiles = []v1alpha1.MIGProfile{{ID: 19, Core: 14, Mem: 100, Size: 1, Starts: []int32{0}, Max: 1}}
				st.Devices[1].Healthy = false
			})
			s.add("a", 10, 100, cpu("40")) // beside itself it would not fit
			s.work()
			if held := s.allocator.cache.Index.Holders("a"); len(held) != 1 || !podstate.Gated(s.get("a")) {
				t.Fatalf("holds slices on %v, gated is %t: want slices, and the gate", held, podstate.Gated(s.get("a")))
			}
			s.checkPicture()
			if cpu := s.allocator.Filters.Host("n0").CPU; cpu != 24_000 {
				t.Errorf("%d milli CPU are free on its node, want 24000", cpu)
			}
			s.pass(binding.PrepareGrace - time.Second)
			if !podstate.Gated(s.get("a")) {
				t.Error("let go before the node was ready")
			}
			ready(s)
			s.work()
			if p := s.get("a"); podstate.Gated(p) || podstate.TargetNode(p) != "n0" {
				t.Errorf("gated is %t, home %q", podstate.Gated(p), podstate.TargetNode(p))
			}
			if kept(s.allocator.cache, "staged") > 0 {
				t.Error("remembered")
			}
		})
	}
}
