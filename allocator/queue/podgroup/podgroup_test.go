// SPDX-License-Identifier: Apache-2.0

package podgroup

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/podrequest"
)

func pod(edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{}, Annotations: map[string]string{}}}
	for _, e := range edits {
		e(p)
	}
	return p
}

func annotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func object(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "ns", "name": "g"}, "spec": spec}}
}

// kept is what the cache keeps of a group.
func kept(api podrequest.GroupAPI, spec map[string]any) *podGroup {
	return trim(api, object(spec))
}

// Of a group with a MiB of anything in it only what is read is kept.
func TestHostileGroupsAreTrimmed(t *testing.T) {
	mib := strings.Repeat("x", 1<<20)
	u := object(map[string]any{
		"minMember": int64(3), "minResources": map[string]any{mib: mib}, "schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": int64(4), mib: mib}},
		"disruptionMode": EndPods, "schedulingConstraints": map[string]any{"topology": slices.Repeat([]any{map[string]any{"key": "rack", "more": mib}}, 10_000)},
	})
	u.Object["status"] = mib
	u.SetUID("u")
	u.SetResourceVersion("7")
	u.SetLabels(map[string]string{"l": mib})
	u.SetAnnotations(map[string]string{"a": mib})
	u.SetFinalizers([]string{mib})
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "g", UID: "u", ResourceVersion: "7"}
	for api, want := range map[podrequest.GroupAPI]size{podrequest.Coscheduling: {min: 3}, podrequest.Volcano: {min: 3}, podrequest.Native: {min: 4, ends: EndPods, topology: []string{"rack", "rack", "rack", "rack"}}} {
		if got := trim(api, u.DeepCopy()); !reflect.DeepEqual(got, &podGroup{meta, want}) {
			t.Errorf("%s: kept %v", api, got)
		}
	}
}

func TestMin(t *testing.T) {
	gang := func(n any) map[string]any {
		return map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": n}}}
	}
	for name, tt := range map[string]struct {
		api  podrequest.GroupAPI
		spec map[string]any
		want int
		err  string
	}{
		"minMember":              {podrequest.Coscheduling, map[string]any{"minMember": int64(3)}, 3, ""},
		"minMember 0":            {podrequest.Coscheduling, map[string]any{"minMember": int64(0)}, 0, "PodGroup ns/g: spec.minMember is 0: set it to the number of pods that must start together"},
		"no minMember":           {podrequest.Coscheduling, nil, 0, "spec.minMember is 0"},
		"a negative minMember":   {podrequest.Coscheduling, map[string]any{"minMember": int64(-1)}, 0, "spec.minMember is -1"},
		"a minMember of letters": {podrequest.Coscheduling, map[string]any{"minMember": "three"}, 0, "spec.minMember is 0"},
		"Volcano's minMember":    {podrequest.Volcano, map[string]any{"minMember": int64(3), "minTaskMember": map[string]any{"worker": int64(2)}}, 3, ""},
		"Volcano's minMember 0":  {podrequest.Volcano, map[string]any{"minMember": int64(0)}, 1, ""},
		"Volcano's default":      {podrequest.Volcano, map[string]any{"queue": "default"}, 1, ""},
		"a negative one of it":   {podrequest.Volcano, map[string]any{"minMember": int64(-1)}, 0, "PodGroup ns/g: spec.minMember is -1: set it"},
		"letters in it":          {podrequest.Volcano, map[string]any{"minMember": "three"}, 0, "spec.minMember is 0"},
		"minCount":               {podrequest.Native, gang(int64(4)), 4, ""},
		"minCount 0":             {podrequest.Native, gang(int64(0)), 0, "spec.schedulingPolicy.gang.minCount is 0"},
		"the basic policy":       {podrequest.Native, map[string]any{"schedulingPolicy": map[string]any{"basic": map[string]any{}}}, 1, ""},
	} {
		s := &Sizes{}
		got, err := s.Min(s.put(tt.api, kept(tt.api, tt.spec)), nil)
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %d, %v, want %d, %q", name, got, err, tt.want, tt.err)
		}
	}
}

// What is not there is told with what to do; what is not known yet is neither.
func TestMinOfWhatIsNotThere(t *testing.T) {
	s, n := &Sizes{}, podrequest.Group{API: podrequest.Coscheduling, Namespace: "ns", Name: "g"}
	if _, err := s.Min(n, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("before anything was read: %v", err)
	}
	if !s.set(podrequest.Coscheduling, served.Absent) || s.set(podrequest.Coscheduling, served.Absent) {
		t.Error("a change is one once")
	}
	if _, err := s.Min(n, nil); err == nil || !strings.Contains(err.Error(),
		"label scheduling.x-k8s.io/pod-group names PodGroup ns/g, and this cluster has no PodGroups of scheduling.x-k8s.io: install them") {
		t.Errorf("without the CRD: %v", err)
	}
	s.set(podrequest.Coscheduling, served.Read)
	if _, err := s.Min(n, nil); err == nil || !strings.Contains(err.Error(), "which does not exist: create it") {
		t.Errorf("without the group: %v", err)
	}
	s.put(podrequest.Coscheduling, kept(podrequest.Coscheduling, map[string]any{"minMember": int64(2)}))
	if got, err := s.Min(n, nil); got != 2 || err != nil {
		t.Errorf("with it: %d, %v", got, err)
	}
	s.drop(n)
	if _, err := s.Min(n, nil); err == nil {
		t.Error("a group that was deleted is still read")
	}
	s.put(podrequest.Coscheduling, kept(podrequest.Coscheduling, map[string]any{"minMember": int64(2)}))
	s.set(podrequest.Coscheduling, served.Absent)
	if _, err := s.Min(n, nil); err == nil || !strings.Contains(err.Error(), "install them") {
		t.Errorf("after the CRD was deleted: %v", err)
	}
	if _, err := s.Min(podrequest.Group{API: podrequest.Native, Namespace: "ns", Name: "g"}, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("one API says nothing about the other: %v", err)
	}
}

// Without Volcano its annotation is a remnant, and its pods start one by one; where its PodGroups are, the
// one that is named must exist.
func TestVolcanoIsGone(t *testing.T) {
	s, n := &Sizes{}, podrequest.Group{API: podrequest.Volcano, Namespace: "ns", Name: "g"}
	if _, err := s.Min(n, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("before it is known: %v", err)
	}
	s.set(podrequest.Volcano, served.Absent)
	if got, err := s.Min(n, nil); got != 1 || err != nil {
		t.Errorf("without the CRD: %d, %v", got, err)
	}
	s.set(podrequest.Volcano, served.Read)
	if _, err := s.Min(n, nil); err == nil || err.Error() !=
		"annotation scheduling.k8s.io/group-name names PodGroup ns/g of scheduling.volcano.sh, which does not exist: create it, or correct the name" {
		t.Errorf("without the group: %v", err)
	}
}

func TestKueueTotal(t *testing.T) {
	n := podrequest.Group{API: podrequest.Kueue, Namespace: "ns", Name: "g"}
	three, four := pod(annotation(podrequest.AnnotationKueueTotal, "3")), pod(annotation(podrequest.AnnotationKueueTotal, "4"))
	for name, tt := range map[string]struct {
		members []*corev1.Pod
		want    int
		err     string
	}{
		"all say the same":   {[]*corev1.Pod{three, three}, 3, ""},
		"they differ":        {[]*corev1.Pod{three, four}, 0, `say "3" and "4"`},
		"the last says not":  {[]*corev1.Pod{three, pod()}, 0, `say "3" and ""`},
		"the first says not": {[]*corev1.Pod{pod(), three}, 0, `say "" and "3"`},
		"nobody says":        {[]*corev1.Pod{pod()}, 0, "annotation kueue.x-k8s.io/pod-group-total-count of the pods of Kueue's pod group ns/g is \"\""},
		"zero":               {[]*corev1.Pod{pod(annotation(podrequest.AnnotationKueueTotal, "0"))}, 0, "1 or more"},
		"not a number":       {[]*corev1.Pod{pod(annotation(podrequest.AnnotationKueueTotal, "all"))}, 0, "1 or more"},
	} {
		got, err := new(Sizes).Min(n, tt.members)
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %d, %v, want %d, %q", name, got, err, tt.want, tt.err)
		}
	}
}

// Who needs no groups does not wait for them for ever, and nobody waits once all APIs
// are known.
func TestAwaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, start := &Sizes{}, time.Now()
		s.set(podrequest.Native, served.Absent)
		s.set(podrequest.Coscheduling, served.Absent)
		s.Await(t.Context(), time.Minute)
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("waited for %v, want a minute", waited)
		}
		start = time.Now()
		time.AfterFunc(10*time.Second, func() { s.set(podrequest.Volcano, served.Read) })
		s.Await(t.Context(), time.Minute)
		if waited := time.Since(start); waited < 10*time.Second || waited > 11*time.Second {
			t.Errorf("waited for %v, want 10 s", waited)
		}
	})
}

// How a group's pods may be ended is what a native group says: of others nobody does.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		api  podrequest.GroupAPI
		mode any
		want string
	}{
		"one by one":   {podrequest.Native, "Pod", EndPods},
		"all together": {podrequest.Native, "PodGroup", EndGroup},
		"not said":     {podrequest.Native, nil, ""},
		"not a string": {podrequest.Native, map[string]any{"all": map[string]any{}}, ""},
		"coscheduling": {podrequest.Coscheduling, "PodGroup", ""},
		"Volcano":      {podrequest.Volcano, "PodGroup", ""},
	} {
		for _, policy := range []string{"gang", "basic"} {
			spec := map[string]any{"minMember": int64(2), "schedulingPolicy": map[string]any{policy: map[string]any{"minCount": int64(2)}}}
			if tt.mode != nil {
				spec["disruptionMode"] = tt.mode
			}
			s := &Sizes{}
			n := s.put(tt.api, kept(tt.api, spec))
			if got := s.Ends(n); got != tt.want {
				t.Errorf("%s, %s: %q, want %q", name, policy, got, tt.want)
			}
			if s.drop(n); s.Ends(n) != "" {
				t.Errorf("%s: a group that is gone says %q", name, s.Ends(n))
			}
		}
	}
}
