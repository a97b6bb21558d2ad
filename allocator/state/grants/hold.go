// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// Hold marks the slices of the owner's pods as held until then, to the second. The
// owner has one entry in a ledger: what it holds already is held as long.
func Hold(ledger *v1alpha1.SliceLedger, owner string, until time.Time, pods ...types.UID) {
	at := metav1.NewTime(until.Truncate(time.Second))
	for i := range ledger.Spec.Holds {
		if h := &ledger.Spec.Holds[i]; h.Owner == owner {
			h.Until, h.Pods = at, append(slices.Clip(h.Pods), pods...)
			return
		}
	}
	ledger.Spec.Holds = append(ledger.Spec.Holds, v1alpha1.Hold{Owner: owner, Until: at, Pods: pods})
}

// Commit ends the holds on the slices of the pods that take names: they are granted
// now. It reports whether anything changed.
func Commit(ledger *v1alpha1.SliceLedger, take func(types.UID) bool) bool {
	changed := false
	for i := range ledger.Spec.Holds {
		h := &ledger.Spec.Holds[i]
		before := len(h.Pods)
		h.Pods = slices.DeleteFunc(h.Pods, take)
		changed = changed || len(h.Pods) != before
	}
	ledger.Spec.Holds = slices.DeleteFunc(ledger.Spec.Holds, func(h v1alpha1.Hold) bool { return len(h.Pods) == 0 })
	return changed
}

// Held are the pods whose slices are held, each with its hold. Read only.
func Held(ledger *v1alpha1.SliceLedger) map[types.UID]*v1alpha1.Hold {
	held := map[types.UID]*v1alpha1.Hold{}
	for i := range ledger.Spec.Holds {
		for _, pod := range ledger.Spec.Holds[i].Pods {
			held[pod] = &ledger.Spec.Holds[i]
		}
	}
	return held
}
