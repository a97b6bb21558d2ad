// SPDX-License-Identifier: Apache-2.0

package classes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

func class(name string, age time.Duration) *api.GPUClass {
	return &api.GPUClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
		Spec: api.GPUClassSpec{Models: []string{"NVIDIA H100 80GB HBM3", "A100"}, Unit: api.GPUUnit{Core: 25, MemMiB: 20480},
			Mode: api.ModeLimiter, Topology: "numa:required"},
	}
}

func TestSet(t *testing.T) {
	var none *Set
	if none.Get("gold") != nil || (&Set{}).Get("gold") != nil || len(none.All()) > 0 {
		t.Error("a set of none has a class")
	}
	s := &Set{}
	s.Put(class("gold", 0))
	gold := s.Get("gold")
	if gold == nil || gold.Name != "gold" || gold.Unit != (api.GPUUnit{Core: 25, MemMiB: 20480}) || gold.Mode != api.ModeLimiter ||
		gold.Topology != (api.TopologyRequest{Level: api.TopologyNUMA, Required: true}) {
		t.Fatalf("%+v", gold)
	}
	for model, want := range map[string]bool{"NVIDIA H100 80GB HBM3": true, "NVIDIA A100-SXM4-80GB": true, "NVIDIA H200": false} {
		if gold.Models.Allows(model) != want {
			t.Errorf("allows %s: %v", model, !want)
		}
	}
	broken := class("broken", 0)
	broken.Spec.Unit.Core = 0
	s.Put(broken)
	if s.Get("broken") != nil || len(s.All()) != 1 {
		t.Error("a class is looked up that the API server would refuse")
	}
	s.Delete("gold")
	if s.Get("gold") != nil {
		t.Error("a class that was deleted is there")
	}
}

// A class that is made when there are enough takes no other's place, whatever its name is.
func TestSet_WhenThereAreTooMany_OldestCount(t *testing.T) {
	s := &Set{}
	for i := range api.MaxGPUClasses {
		s.Put(class(fmt.Sprintf("old-%d", i), time.Hour))
	}
	s.Put(class("a-new-one", 0))
	if s.Get("a-new-one") != nil || len(s.All()) != api.MaxGPUClasses {
		t.Errorf("%d classes", len(s.All()))
	}
	s.Delete("old-7")
	if s.Get("a-new-one") == nil || len(s.All()) != api.MaxGPUClasses {
		t.Error("the place of one that was deleted is not taken")
	}
}

func TestGet_AllocatesNothing(t *testing.T) {
	s, name := Of(*class("gold", 0)), strings.Repeat("x", 4)+"gold"
	if n := testing.AllocsPerRun(100, func() {
		if s.Get(name[4:]) == nil {
			t.Fatal("not found")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A class that says something else in its status is no change: nobody looks at waiting pods for it.
func TestFollow(t *testing.T) {
	scheme := runtime.NewScheme()
	must.Do(t, api.AddToScheme(scheme))
	from, s, changes := &informertest.FakeInformers{Scheme: scheme}, &Set{}, 0
	must.Do(t, s.Follow(t.Context(), from, func() { changes++ }))
	informer := must.Get(from.FakeInformerFor(t.Context(), &api.GPUClass{}))(t)
	expect := func(what string, want int, unit api.Percent) {
		t.Helper()
		if c := s.Get("gold"); changes != want || c == nil || c.Unit.Core != unit {
			t.Errorf("%s: %d changes, want %d; the class is %+v", what, changes, want, c)
		}
	}
	gold := class("gold", 0)
	informer.Add(gold)
	expect("added", 1, 25)
	status := gold.DeepCopy()
	status.Status.Conditions = []metav1.Condition{{Type: api.ConditionAvailable}}
	informer.Update(gold, status)
	expect("its status", 1, 25)
	mode := status.DeepCopy()
	mode.Spec.Mode = api.ModeMPS
	informer.Update(status, mode)
	expect("its mode", 2, 25)
	again := mode.DeepCopy()
	again.UID = "another"
	informer.Update(mode, again)
	expect("made again", 3, 25)
}
