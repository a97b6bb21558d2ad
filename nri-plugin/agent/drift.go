// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// Reasons of the condition.
const (
	reasonEdited    = "SpecEdited"
	reasonAsGranted = "AsGranted"
)

// maxDrifted is how many slices the condition names.
const maxDrifted = 3

// drift says of which containers the spec grants other amounts than they run with: what they
// were given at their creation does not change, so somebody has edited the spec. The
// condition is there from the first time on.
func (a *agent) drift(s *v1alpha1.SliceLedgerStatus) {
	var drifted []string
	index := a.ledger.Index()
	for _, e := range a.table.All() {
		if !e.Prepared || e.Status == nil {
			continue
		}
		granted := index.Grants(e.Key())
		for _, has := range a.inForce(e) {
			i := slices.IndexFunc(granted, func(g ledger.Grant) bool { return g.UUID == has.UUID })
			if i < 0 || granted[i].Core == has.Core && granted[i].Mem == has.Mem {
				continue // the allocator puts back what is gone
			}
			drifted = append(drifted, fmt.Sprintf("container %s of pod %s runs with %s of %s and is granted %s",
				e.Name, e.Owner, v1alpha1.AmountsText(has.Core, has.Mem), has.UUID, v1alpha1.AmountsText(granted[i].Core, granted[i].Mem)))
			for j := range s.Slices {
				if of := &s.Slices[j]; of.Container == e.ID && of.UUID == has.UUID {
					of.InForce = &v1alpha1.Amounts{Core: has.Core, Mem: has.Mem}
				}
			}
		}
	}
	slices.Sort(drifted)
	switch n := len(drifted); {
	case n > 0:
		text := strings.Join(drifted[:min(n, maxDrifted)], "; ")
		if n > maxDrifted {
			text += fmt.Sprintf("; and %d more", n-maxDrifted)
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionTrue,
			Reason: reasonEdited, Message: text + ". Put the spec back, or delete the pods"})
	case meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDrifted) != nil:
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionFalse,
			Reason: reasonAsGranted, Message: "containers run with what the spec grants"})
	}
}

// inForce are the amounts that a running container was given, of the modes that give any but
// whole devices and instances.
func (a *agent) inForce(e attach.Entry) []ledger.Grant {
	if m, err := a.modes.For(e.Container); err != nil || m != a.modes[v1alpha1.ModeLimiter] && m != a.modes[v1alpha1.ModeMPS] {
		return nil
	}
	return a.modes.Recall(e.Container, nil)
}
