// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/test/objects"
)

// hostile is a pod of another namespace that no scheduler ever binds and that selects every
// pod of every namespace.
func hostile(p *corev1.Pod) {
	p.Namespace = "hostile"
	p.Spec.SchedulerName = "nobody"
	objects.Near("")(p)
	term := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	term.LabelSelector, term.NamespaceSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
}

// companyOfAll has the pod go by all pods of its app in all namespaces.
func companyOfAll(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		objects.Near(app)(p)
		p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector = &metav1.LabelSelector{}
	}
}

// waitsFor asserts that the pods, which were just created, stay at the gate for this long and
// no longer.
func (s *stage) waitsFor(want time.Duration, names ...string) {
	s.t.Helper()
	s.work()
	s.pass(want - time.Millisecond)
	if got := s.atTheGate(names...); got != strings.Join(names, " ") {
		s.t.Fatalf("at the gate before %v: %q", want, got)
	}
	s.pass(time.Millisecond)
	if got := s.atTheGate(names...); got != "" {
		s.t.Fatalf("at the gate after %v: %q; events %q", want, got, s.newEvents())
	}
	if n := s.allocator.queue.BindWaits(); n > 0 {
		s.t.Errorf("%d waits are remembered of pods that were placed", n)
	}
}

// A pod that is never bound keeps others at the gate for 30 s in its own namespace and for 2 s
// in others, whichever of the two selects the other.
func TestHostileWaitForABind(t *testing.T) {
	for name, tt := range map[string]struct {
		never, waits func(*corev1.Pod)
		want         time.Duration
	}{
		"selected, across namespaces": {hostile, objects.Labelled("y"), queue.MaxWaitAcross},
		"selected, one namespace":     {func(p *corev1.Pod) { hostile(p); p.Namespace = "ns" }, objects.Labelled("y"), queue.MaxWaitWithin},
		"selects, across namespaces":  {func(p *corev1.Pod) { objects.Labelled("x")(p); p.Namespace = "hostile" }, companyOfAll("x"), queue.MaxWaitAcross},
		"selects, one namespace":      {objects.Labelled("x"), objects.Near("x"), queue.MaxWaitWithin},
		"a gang, across namespaces":   {hostile, objects.InGang("g", 3), queue.MaxWaitAcross},
		"a gang, one namespace":       {func(p *corev1.Pod) { hostile(p); p.Namespace = "ns" }, objects.InGang("g", 3), queue.MaxWaitWithin},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			s.add("never", 1, 1, tt.never)
			s.work()
			s.expect("never:*")
			for _, n := range []string{"p0", "p1", "p2"} {
				s.add(n, 10, 100, tt.waits)
			}
			s.waitsFor(tt.want, "p0", "p1", "p2")
		})
	}
}

// What a pod waits is of its whole life: fresh pods that are never bound, one each second,
// renew nothing, and neither do changes of the pod that waits.
func TestHostileStreamRenewsNoWait(t *testing.T) {
	for name, edits := range map[string][]func(*corev1.Pod){
		"alone":  {objects.Labelled("victim")},
		"a gang": {objects.InGang("g", 2), func(p *corev1.Pod) { p.Labels["app"] = "victim" }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			// With one of the app bound, the fresh ones need not be of it, and don't wait for
			// each other.
			s.add("anchor", 1, 1, objects.InNamespace("hostile"), objects.Labelled("victim"))
			s.work()
			s.bindNow("anchor")
			fresh := func(i int) *corev1.Pod {
				p := s.add(fmt.Sprint("fresh", i), 1, 1, objects.InNamespace("hostile"), companyOfAll("victim"))
				s.work()
				return p
			}
			last := fresh(0)
			s.add("p0", 10, 100, edits...)
			s.add("p1", 10, 100, edits...)
			s.work()
			for i := range 4 * int(queue.MaxWaitAcross/time.Second) {
				at := time.Duration(i) * time.Second / 2
				if got, want := s.atTheGate("p0", "p1") != "", at < queue.MaxWaitAcross; got != want {
					t.Fatalf("at the gate after %v: %v, want %v", at, got, want)
				}
				if i%2 == 1 {
					next := fresh(i)
					s.vanish(s.get(last.Name))
					last = next
				}
				changed := s.get("p0")
				metav1.SetMetaDataLabel(&changed.ObjectMeta, "changed", fmt.Sprint(i))
				s.put(changed)
				s.pass(time.Second / 2)
			}
		})
	}
}

// Nobody is told the name of a pod of another namespace.
func TestWaitTellsNoForeignName(t *testing.T) {
	s := newStage(t, 1)
	s.add("anchor", 1, 1, objects.Labelled("y"))
	s.work()
	s.bindNow("anchor")
	own := s.add("own", 1, 1, objects.Near("y"))
	s.work()
	s.add("p", 10, 100, objects.Labelled("y"))
	s.work()
	s.pass(queue.ElsewherePatience - time.Second)
	s.add("secret", 1, 1, objects.InNamespace("hostile"), companyOfAll("y"))
	s.work()
	s.forget(own.Name)
	s.pass(time.Second)
	if got := fmt.Sprint(s.newEvents()); strings.Contains(got, "secret") || !strings.Contains(got, "waits for a pod of another namespace to bind") {
		t.Errorf("events %s", got)
	}
}

// Of a large gang it is asked for so long and no longer who has to be bound before it.
func TestBlocked_WhenGangIsLarge_IsBounded(t *testing.T) {
	for _, slow := range []bool{false, true} {
		s := newStage(t, 2)
		s.add("never", 1, 1, objects.InNamespace("hostile"), objects.Labelled("last"), companyOfAll("last"))
		s.work()
		const members = 4 * queue.MaxRound
		for i := range members {
			s.add(fmt.Sprintf("m%03d", i), 0, 1, objects.InGang("g", members), func(p *corev1.Pod) {
				if i == members-1 {
					p.Labels["app"] = "last"
				}
			})
		}
		s.readAll()
		if slow {
			s.slow(scheduling.RoundTime)
		}
		if got := s.allocator.queue.Blocked(s.allocator.groups.Gang(podrequest.Group{API: podrequest.Kueue, Namespace: "ns", Name: "g"}).Due...); got == slow {
			t.Errorf("waits %v where the clock is slow %v", got, slow)
		}
	}
}

// Once it is not waited for any more, a pod counts as bound to the node that it is pinned to.
func TestPodThatIsNotWaitedForCounts(t *testing.T) {
	s := newStage(t, 2)
	s.add("never", 1, 1, hostile, objects.Labelled("z"))
	s.work()
	apart := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "z"}}, NamespaceSelector: &metav1.LabelSelector{}}}}}
	}
	s.add("apart", 10, 100, apart)
	s.add("beside", 10, 100, companyOfAll("z"))
	s.work()
	s.pass(queue.MaxWaitAcross)
	at := podstate.TargetNode(s.get("never"))
	if got := s.seats("apart", "beside"); got != fmt.Sprintf("apart:%s beside:%s", map[string]string{"n0": "n1", "n1": "n0"}[at], at) {
		t.Errorf("placed %q, the other pod is on %s", got, at)
	}
}

func withClaim(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
}

func withDevice(p *corev1.Pod) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: ptr.To("nic")}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "nic"}}
}

// The same bounds hold where it matters who takes a volume of a class without a provisioner,
// a claim, or a device of another driver first.
func TestHostileWaitForVolumesAndClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		edit      func(*corev1.Pod)
		namespace string
		want      time.Duration
	}{
		"a volume of a class, across namespaces": {withClaim, "hostile", queue.MaxWaitAcross},
		"a claim, one namespace":                 {withClaim, "ns", queue.MaxWaitWithin},
		"a device, across namespaces":            {withDevice, "hostile", queue.MaxWaitAcross},
		"a device, one namespace":                {withDevice, "ns", queue.MaxWaitWithin},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			s.world.objects = unboundObjects(2, "ns", "hostile")
			s.restart()
			s.add("never", 1, 1, tt.edit, objects.InNamespace(tt.namespace))
			s.work()
			s.expect("never:*")
			s.add("p", 10, 100, tt.edit)
			s.waitsFor(tt.want, "p")
		})
	}
}

// A claim that the filters fail at, which is its author's to write, is in the way of no pod of
// another tenant that asks for a device as well.
func TestHostileBrokenClaim(t *testing.T) {
	s := newStage(t, 2)
	s.world.objects = unboundObjects(4, "ns", "hostile")
	s.restart()
	s.add("never", 1, 1, withDevice, objects.InNamespace("hostile"))
	s.work()
	s.expect("never:*")
	// It is deleted and made again under its pod.
	s.world.objects = unboundObjects(4, "ns", "hostile")
	for _, o := range s.world.objects {
		if c, ok := o.(*resourcev1.ResourceClaim); ok && c.Namespace == "hostile" {
			c.UID = "another"
			c.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
				Expression: `device.attributes["nic.example.com"].nosuch == "x"`}}}
		}
	}
	s.restart()
	s.work()
	s.add("p", 10, 100, withDevice)
	s.waitsFor(queue.MaxWaitAcross, "p")
}

// What a pod takes that is not waited for any more counts as taken: a volume and a device of
// which each node has one.
func TestPodThatIsNotWaitedForTakes(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Pod){"volume": withClaim, "device": withDevice} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			s.world.objects = unboundObjects(1, "ns", "hostile", "third")
			s.restart()
			s.add("never", 1, 1, edit, objects.InNamespace("hostile"))
			s.work()
			s.add("p", 10, 100, edit)
			s.work()
			s.pass(queue.MaxWaitAcross)
			at := podstate.TargetNode(s.get("never"))
			if got, want := podstate.TargetNode(s.get("p")), map[string]string{"n0": "n1", "n1": "n0"}[at]; got != want {
				t.Errorf("placed on %q, want %s, since the other takes that of %s; events %q", got, want, at, s.newEvents())
			}
			s.add("q", 10, 100, edit, objects.InNamespace("third"))
			s.work()
			s.pass(queue.MaxWaitAcross)
			if got := podstate.TargetNode(s.get("q")); got != "" {
				t.Errorf("the third is placed on %s, where another takes what it needs", got)
			}
			s.forget("never")
			s.pass(queue.RefusedDelay)
			s.pass(queue.MaxWaitAcross)
			if got := podstate.TargetNode(s.get("q")); got != at {
				t.Errorf("placed on %q when the first is gone, want %s; events %q", got, at, s.newEvents())
			}
		})
	}
}

// unboundObjects are, on n0 and n1, so many volumes each of a class without a provisioner and
// as many devices of another driver, and in each namespace a claim for either.
func unboundObjects(each int, namespaces ...string) []runtime.Object {
	amount := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	all := []runtime.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)},
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}},
	}
	for _, node := range []string{"n0", "n1"} {
		var devices []resourcev1.Device
		for i := range each {
			devices = append(devices, resourcev1.Device{Name: fmt.Sprint("d", i)})
			all = append(all, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(node, i)},
				Spec: corev1.PersistentVolumeSpec{StorageClassName: "local", Capacity: amount, AccessModes: modes,
					PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disk"}},
					NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}},
				Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}})
		}
		all = append(all, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example.com", NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: devices}})
	}
	for _, namespace := range namespaces {
		all = append(all,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To("local"), AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: amount}}},
			&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nic", UID: types.UID("nic-" + namespace)}, Spec: resourcev1.ResourceClaimSpec{
				Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "nic", Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: "nic", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}}})
	}
	return all
}
