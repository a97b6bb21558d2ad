// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"time"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// tideAgain is when a pod with an idle slice is looked at again that a tide keeps off a node.
	tideAgain = time.Minute
	tideShut  = "idle slices begin there in a window of its Tide"
)

// lends reports whether the node's tide lets the pod's idle slice begin now. The index has the amounts
// of the window that the ledger shows. Once that is over, or as good as over for a pod that does not end
// in time, it is what is lent outside.
func (f *nodeFilter) lends(node string) bool {
	ledger := f.Cache.Index.Ledger(node)
	if ledger == nil || ledger.Spec.Tide == nil {
		return true
	}
	tide, now, deadline := ledger.Spec.Tide, f.Clock.Now(), time.Time{}
	if s := f.pod.Spec.ActiveDeadlineSeconds; s != nil {
		deadline = now.Add(time.Duration(*s) * time.Second)
	}
	core, mem := tide.Allows(now)
	if !tide.AdmitsUntil(now, deadline) {
		core, mem = tide.Outside.Core, tide.Outside.Mem
	}
	if core == tide.Core && mem == tide.Mem {
		return true
	}
	var asked v1alpha1.Share
	for _, share := range podrequest.SharesOf(f.pod) {
		asked = share // there is one
	}
	for i := range ledger.Status.Devices {
		d := &ledger.Status.Devices[i]
		most, err := mem.Of(d.Mem)
		idle, has := asked.Idle, asked.MemMiB
		for j := range ledger.Spec.Devices {
			for _, s := range ledger.Spec.Devices[j].Slices {
				if ledger.Spec.Devices[j].UUID == d.UUID && s.Idle > 0 {
					idle, has = idle+s.Idle, has+s.Mem
				}
			}
		}
		if err != nil || idle > core || has > most {
			return false // the plan may be there
		}
	}
	return true
}
