// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
)

func pod(namespace, class string, value int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: corev1.PodSpec{PriorityClassName: class, Priority: ptr.To(value)}}
}

// Within a namespace any class counts; across namespaces those that are allowed, and what is below 0.
func TestAbove(t *testing.T) {
	cs := &Classes{Everywhere: []string{"everywhere"}}
	cs.SetNamespace("prod", map[string]string{v1alpha1.LabelPriorityClassPrefix + "production": v1alpha1.LabelPriorityClassEnabled,
		v1alpha1.LabelPriorityClassPrefix + "misspelt": "Enabled", "production": v1alpha1.LabelPriorityClassEnabled})
	none := pod("b", "", 0)
	for name, c := range map[string]struct {
		p, q *corev1.Pod
		want bool
	}{
		"any class in its own namespace":        {pod("b", "production", 1000), none, true},
		"a lower one there":                     {none, pod("b", "production", 1000), false},
		"a class of another namespace":          {pod("a", "production", 1000), none, false},
		"one that the namespace is allowed":     {pod("prod", "production", 1000), none, true},
		"one with a label that does not say so": {pod("prod", "misspelt", 1000), none, false},
		"one that all are allowed":              {pod("a", "everywhere", 10), none, true},
		"one below 0 yields":                    {none, pod("a", "experiments", -10), true},
		"also to a class that is not allowed":   {pod("a", "production", 1000), pod("b", "experiments", -10), true},
		"which saves nobody either":             {pod("prod", "production", 1000), pod("a", "huge", 100000), true},
		"below 0 and lower":                     {pod("a", "x", -20), pod("b", "y", -10), false},
		"of equal priority":                     {pod("prod", "production", 10), pod("a", "everywhere", 10), false},
	} {
		if got := cs.Of(c.p).Above(cs.Of(c.q)); got != c.want || cs.MayEnd(c.p)(c.q) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if p := (&Classes{Everywhere: []string{Any}}).Of(pod("a", "production", 1000)); p.Limited() || p.Across != 1000 {
		t.Errorf("all classes are allowed: %+v", p)
	}
}

// What a namespace is allowed follows its labels, and is another version where it changes.
func TestSetNamespace(t *testing.T) {
	cs, p := &Classes{}, pod("a", "production", 1000)
	label := map[string]string{v1alpha1.LabelPriorityClassPrefix + "production": v1alpha1.LabelPriorityClassEnabled}
	for i, step := range []struct {
		labels  map[string]string
		across  int32
		version int
	}{{nil, 0, 0}, {map[string]string{"other": "label"}, 0, 0}, {label, 1000, 1}, {label, 1000, 1}, {nil, 0, 2}} {
		cs.SetNamespace("a", step.labels)
		if got := cs.Of(p); got.Across != step.across || got.Within != 1000 || cs.Version() != step.version {
			t.Errorf("step %d: %+v, version %d", i, got, cs.Version())
		}
	}
}

// A gang has the lowest priority of its pods, across namespaces too.
func TestLeast(t *testing.T) {
	cs := &Classes{Everywhere: []string{"everywhere"}}
	got := cs.Least([]*corev1.Pod{pod("a", "everywhere", 10), pod("a", "production", 1000)})
	if got != (Priority{"a", 10, 0}) || cs.Least(nil) != (Priority{}) {
		t.Errorf("of a gang: %+v, of none: %+v", got, cs.Least(nil))
	}
}
