// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

func newClassStage(t *testing.T, known ...v1alpha1.GPUClass) *stage {
	return newStage(t, 1, classed(known...))
}

func units(class, n string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[v1alpha1.ClassResource(class)] = resource.MustParse(n)
	}
}

// A pod whose class was deleted before it was placed waits, and its owner is told which class it
// is: not at once, as the class may have just been made. With the class it is placed, alone and
// in a gang. One that has its slices keeps them when the class goes.
func TestClassIsDeleted(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Pod){"alone": func(*corev1.Pod) {}, "in a gang": objects.InGang("g", 1)} {
		t.Run(name, func(t *testing.T) {
			s := newClassStage(t)
			s.add("p", 10, 100, units("silver", "1"), edit)
			s.work()
			s.says()
			s.pass(queue.ElsewherePatience)
			if sent := strings.Join(s.newEvents(), "; "); !strings.Contains(sent, "container c asks for units of GPUClass silver: there is no such GPUClass; the pod waits until there is") {
				t.Errorf("events %q", sent)
			}
			s.classes.Put(&worldClasses[1])
			s.allocator.ClassesChanged()
			s.work()
			s.expect("p:*")
			s.classes.Delete("silver")
			s.allocator.ClassesChanged()
			before := s.ledger("n0").ResourceVersion
			s.work()
			if p := s.get("p"); p == nil || s.ledger("n0").ResourceVersion != before {
				t.Error("the class is gone, and so is what was granted")
			}
		})
	}
}

// A pod whose class was deleted between its grant and its patch, while the leader changed, is
// placed where it has its slices: they would be held for it with nobody to use them.
func TestClassIsDeletedAfterTheGrant(t *testing.T) {
	s := newClassStage(t)
	s.add("p", 10, 100, units("silver", "1"))
	s.grant("n0", "p", 0, 10, 100)
	s.readAll()
	s.work()
	s.expect("p:*")
}

// The event of a pod of a class that no node serves says so, with the models.
func TestClassNobodyServes(t *testing.T) {
	s := newClassStage(t, worldClasses...)
	s.add("p", 25, 100, units("gold", "1"))
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		for i := range st.Devices {
			st.Devices[i].Model = "T4"
		}
	})
	s.work()
	s.says("container c of GPUClass gold: none of the 2 GPUs is of the class's models (NVIDIA A100) and allowed by the pod's annotations: there are 2 x T4")
}
