// SPDX-License-Identifier: Apache-2.0

package missing

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// on is the device of each container, by index.
type on = map[string]int

const (
	first  = "GPU-n-0"
	second = "GPU-n-1"
)

// fill grants all of a device to another pod.
func fill(l *v1alpha1.SliceLedger, device int) {
	objects.Grant(l, objects.Halves("other", "a", "b"), on{"a": device, "b": device})
}

func use(l *v1alpha1.SliceLedger, p *corev1.Pod, ctr, uuid string) {
	l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: p.UID, Ctr: ctr, UUID: uuid})
}

// lose takes the first device from the node.
func lose(l *v1alpha1.SliceLedger) { l.Status.Devices = l.Status.Devices[1:] }

func running(ctr string) corev1.PodStatus {
	return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: ctr, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
}

// devicesIn are the devices that the ledger grants to the pod, by container.
func devicesIn(l *v1alpha1.SliceLedger, p *corev1.Pod) map[string]string {
	placed := grants.Placement(l, p.UID)
	if placed == nil {
		return nil
	}
	got := map[string]string{}
	for ctr, c := range placed.Containers {
		for _, d := range c.Devices {
			got[ctr] += d.UUID
		}
	}
	return got
}

type edit = func(*v1alpha1.SliceLedger, *corev1.Pod)

// check calls f for a pod with containers a and b that was placed on the first and the second
// device, and that the ledger does not have. want is nil where f is to refuse.
func check(t *testing.T, f func(*corev1.Pod, *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool), change edit, want map[string]string) {
	t.Helper()
	l := objects.ReadyLedger("n")
	p := objects.Place(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 1})
	if change != nil {
		change(l, p)
	}
	ledger, pod := l.DeepCopy(), p.DeepCopy()
	now, fits := f(p, l)
	if !equality.Semantic.DeepEqual(ledger, l) || !equality.Semantic.DeepEqual(pod, p) {
		t.Error("changed what it was given")
	}
	if fits != (want != nil) {
		t.Fatalf("fits: %v, want %v", fits, want != nil)
	}
	if !fits {
		return
	}
	if diff := cmp.Diff(want, devicesIn(now, p)); diff != "" {
		t.Errorf("devices, -want +got:\n%s", diff)
	}
	other := objects.Halves("other", "a", "b")
	if diff := cmp.Diff(devicesIn(l, other), devicesIn(now, other)); diff != "" {
		t.Errorf("another pod's devices, -before +now:\n%s", diff)
	}
}

func TestInPlace(t *testing.T) {
	both := map[string]string{"a": first, "b": second}
	tests := []struct {
		name string
		edit edit
		want map[string]string
	}{
		{"lost", nil, both},
		{"on a device that is unhealthy", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Devices[0].Healthy = false }, both},
		{"on a device that is cordoned", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) {
			l.Spec.Cordons = []v1alpha1.Cordon{{UUID: first}}
		}, both},
		{"beside another pod", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) {
			objects.Grant(l, objects.Halves("other", "a"), on{"a": 1})
		}, both},
		{"no room on one of the devices", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { fill(l, 1) }, nil},
		{"one of the devices is gone", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { lose(l) }, nil},
		{"the ledger has the half of it", func(l *v1alpha1.SliceLedger, p *corev1.Pod) { objects.Grant(l, p, on{"a": 0}) }, both},
		{"the ledger has moved it", func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			objects.Grant(l, p, on{"a": 1, "b": 1})
		}, map[string]string{"a": second, "b": second}},
		{"it runs elsewhere than it was placed", func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			use(l, p, "a", second)
			use(l, p, "a", second) // started again: listed twice for a moment
		}, map[string]string{"a": second, "b": second}},
		{"placed on another node", func(_ *v1alpha1.SliceLedger, p *corev1.Pod) {
			objects.Place(p, objects.ReadyLedger("m"), on{"a": 0, "b": 1})
		}, nil},
		{"no placement that can be read", func(_ *v1alpha1.SliceLedger, p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationPlacement] = "{"
		}, nil},
		{"no shares that can be read", func(_ *v1alpha1.SliceLedger, p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationShares] = "{"
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, InPlace, tt.edit, tt.want) })
	}
}

// moved is Moved where these classes are known.
func moved(known *classes.Set) func(*corev1.Pod, *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
	return func(p *corev1.Pod, l *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
		return Moved(p, l, known, time.Unix(1000, 0))
	}
}

func TestMoved(t *testing.T) {
	gone := func(then edit) edit {
		return func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			lose(l)
			if then != nil {
				then(l, p)
			}
		}
	}
	tests := []struct {
		name string
		edit edit
		want map[string]string
	}{
		{"no device is gone", nil, nil},
		{"no device is gone and there is no room", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { fill(l, 0) }, nil},
		{"a device is gone", gone(nil), map[string]string{"a": second, "b": second}},
		{"its container runs, says the kubelet", gone(func(_ *v1alpha1.SliceLedger, p *corev1.Pod) { p.Status = running("a") }), nil},
		{"its container runs, says the node agent", gone(func(l *v1alpha1.SliceLedger, p *corev1.Pod) { use(l, p, "a", first) }), nil},
		{"the other container runs", gone(func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			p.Status = running("b")
			use(l, p, "b", second)
		}), map[string]string{"a": second, "b": second}},
		{"no room on another device", gone(func(l *v1alpha1.SliceLedger, _ *corev1.Pod) {
			objects.Grant(l, objects.Halves("other", "a"), on{"a": 0})
		}), nil},
		{"the other device takes nothing new", gone(func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Devices[0].Healthy = false }), nil},
		{"the other device is cordoned", gone(func(l *v1alpha1.SliceLedger, _ *corev1.Pod) {
			l.Spec.Cordons = []v1alpha1.Cordon{{UUID: second}}
		}), nil},
		{"a third device is unhealthy", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) {
			third := l.Status.Devices[1]
			third.UUID, third.Index, third.Healthy = "GPU-n-2", 2, false
			l.Status.Devices = append(l.Status.Devices[1:], third)
		}, map[string]string{"a": second, "b": second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, moved(nil), tt.edit, tt.want) })
	}
}

// A container of a class moves to a device of its class, and nowhere while nobody knows which
// these are.
func TestMovedWithinAClass(t *testing.T) {
	const third = "GPU-n-2"
	gold := classes.Of(v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: v1alpha1.GPUClassSpec{Models: []string{"A100"}, Unit: v1alpha1.GPUUnit{Core: 50}}})
	classed := func(ctr string, models ...string) edit {
		return func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			for i := range p.Spec.Containers {
				if c := &p.Spec.Containers[i]; c.Name == ctr {
					c.Resources.Requests[v1alpha1.ClassResource("gold")] = resource.MustParse("1")
				}
			}
			lose(l)
			last := l.Status.Devices[0]
			last.UUID, last.Index = third, 2
			l.Status.Devices = append(l.Status.Devices, last)
			for i, model := range models {
				l.Status.Devices[i].Model = model
			}
		}
	}
	check(t, moved(gold), classed("a", "T4", "A100"), map[string]string{"a": third, "b": second})
	check(t, moved(gold), classed("a", "A100", "T4"), map[string]string{"a": second, "b": second})
	check(t, moved(gold), classed("a", "T4", "T4"), nil)
	check(t, moved(nil), classed("a", "T4", "A100"), nil)
	// What stays needs no class.
	check(t, moved(nil), classed("b", "T4", "A100"), map[string]string{"a": second, "b": second})
}

func TestPossible(t *testing.T) {
	tests := []struct {
		name string
		edit func(*v1alpha1.SliceLedger)
		want bool
	}{
		{"in place", func(*v1alpha1.SliceLedger) {}, true},
		{"on another device", lose, true},
		{"nowhere", func(l *v1alpha1.SliceLedger) { fill(l, 0) }, false},
	}
	for _, tt := range tests {
		l := objects.ReadyLedger("n")
		p := objects.Place(objects.Halves("p", "a"), l, on{"a": 0})
		if tt.edit(l); Possible(p, l, nil) != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, !tt.want, tt.want)
		}
	}
}

func TestAttached(t *testing.T) {
	l := objects.ReadyLedger("n")
	p, other := objects.Halves("p", "a"), objects.Halves("other", "a")
	objects.Grant(l, p, on{"a": 0})
	if use(l, other, "a", first); Attached(l, p) {
		t.Error("granted and not in use, yet attached")
	}
	if use(l, p, "a", first); !Attached(l, p) {
		t.Error("in use, yet not attached")
	}
}

// Where the pod requires GPUs of one NUMA node, what moves goes beside what stays.
func TestMovedWithinASet(t *testing.T) {
	const third, fourth = "GPU-n-2", "GPU-n-3"
	near := func(wish string, sets ...v1alpha1.DeviceSet) edit {
		return func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			lose(l)
			for i, uuid := range []string{third, fourth} {
				d := l.Status.Devices[0]
				d.UUID, d.Index = uuid, int32(i+2)
				l.Status.Devices = append(l.Status.Devices, d)
			}
			fill(l, 1)
			l.Status.Topology = &v1alpha1.TopologyStatus{NUMA: sets}
			p.Annotations[v1alpha1.AnnotationTopology] = wish
			// B stays, and has no room for another.
			objects.Grant(l, objects.Halves("beside", "a"), on{"a": 0})
		}
	}
	check(t, moved(nil), near("numa:required", "0,2", "1"), map[string]string{"a": fourth, "b": second})
	check(t, moved(nil), near("numa:required", "0,1", "2"), nil)
	check(t, moved(nil), near("numa", "0,1", "2"), map[string]string{"a": fourth, "b": second})
}

// What goes back where it was keeps the time of its grant; of what was lost nobody knows it, and
// what moves begins then.
func TestSince(t *testing.T) {
	at := &metav1.Time{Time: time.Unix(500, 0)}
	grant := func(on on) edit {
		return func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			objects.Grant(l, p, on)
			for i := range l.Spec.Devices {
				for j := range l.Spec.Devices[i].Slices {
					l.Spec.Devices[i].Slices[j].Since = at
				}
			}
		}
	}
	for name, tt := range map[string]struct {
		f    func(*corev1.Pod, *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool)
		edit []edit
		want map[string]int64
	}{
		"lost":                      {InPlace, nil, map[string]int64{"a": 0, "b": 0}},
		"the half of it lost":       {InPlace, []edit{grant(on{"b": 1})}, map[string]int64{"a": 0, "b": 500}},
		"it runs elsewhere":         {InPlace, []edit{grant(on{"a": 1, "b": 1}), func(l *v1alpha1.SliceLedger, p *corev1.Pod) { use(l, p, "a", first) }}, map[string]int64{"a": 0, "b": 500}},
		"lost and a device is gone": {moved(nil), []edit{func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { lose(l) }}, map[string]int64{"a": 1000, "b": 0}},
		"a device is gone":          {moved(nil), []edit{grant(on{"a": 0, "b": 1}), func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { lose(l) }}, map[string]int64{"a": 1000, "b": 500}},
	} {
		l := objects.ReadyLedger("n")
		p := objects.Place(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 1})
		for _, edit := range tt.edit {
			edit(l, p)
		}
		now, fits := tt.f(p, l)
		if !fits {
			t.Errorf("%s: no room", name)
			continue
		}
		got := map[string]int64{}
		for _, d := range now.Spec.Devices {
			for _, s := range d.Slices {
				if got[s.Ctr] = 0; s.Since != nil {
					got[s.Ctr] = s.Since.Unix()
				}
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: since, -want +got:\n%s", name, diff)
		}
	}
}
