// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

// localStorage is a class of volumes that somebody made on nodes, one on each; a claim
// is bound to one when its first pod comes. A controller that binds them runs until the
// test ends.
func (s *server) localStorage(nodes ...string) {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}))
	for _, node := range nodes {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node}, Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disk"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}}
		s.must(s.Create(ctx, v))
		v.Status.Phase = corev1.VolumeAvailable
		s.must(s.Status().Update(ctx, v))
	}
}

// bindVolumes does what the volume controller does once the scheduler has chosen.
func (s *server) bindVolumes(ctx context.Context) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := s.List(ctx, volumes); err != nil {
		return err
	}
	for _, v := range volumes.Items {
		if v.Spec.ClaimRef == nil || v.Status.Phase == corev1.VolumeBound {
			continue
		}
		c := &corev1.PersistentVolumeClaim{}
		if err := s.Get(ctx, client.ObjectKey{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}, c); err != nil {
			return err
		}
		c.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		if err := s.Update(ctx, c); err != nil {
			return err
		}
		c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: v.Spec.AccessModes, Capacity: v.Spec.Capacity}
		if err := s.Status().Update(ctx, c); err != nil {
			return err
		}
		v.Status.Phase = corev1.VolumeBound
		if err := s.Status().Update(ctx, &v); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) addClaim(name string) {
	s.t.Helper()
	s.must(s.Create(s.t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("local"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}))
}

func withVolume(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
}

// awaitBoundWithVolumes is awaitBound beside a volume controller.
func (s *server) awaitBoundWithVolumes(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.await(name+" to be bound", func(ctx context.Context) (bool, error) {
			if err := s.bindVolumes(ctx); err != nil && !apierrors.IsConflict(err) {
				return false, err
			}
			return s.pod(name).Spec.NodeName != "", nil
		})
	}
}

// startWithVolumes has two nodes with a local volume each, and these claims for them.
func startWithVolumes(t *testing.T, claims ...string) *server {
	s := startWith(t, nil)
	s.addNode("n0")
	s.addNode("n1")
	s.localStorage("n0", "n1")
	for _, name := range claims {
		s.addClaim(name)
	}
	s.run()
	return s
}

// allGetTheirs has the scheduler begin once a pod that came after p0 and p1 has its
// place, by when one that didn't wait has, too.
func (s *server) allGetTheirs() {
	s.t.Helper()
	s.addPod("last", objects.Share(10, 100))
	s.awaitPlaced("last")
	apiserver.StartScheduler(s.t, s.cfg)
	s.awaitBoundWithVolumes("p0", "p1", "last")
}

// Invariant 7, against the real kube-scheduler: of two pods that each need a local
// volume, the second is decided on when it is known which one the first took.
func TestVolumesOnTheWay(t *testing.T) {
	s := startWithVolumes(t, "c0", "c1")
	s.addPod("p0", objects.Share(10, 100), withVolume("c0"))
	s.addPod("p1", objects.Share(10, 100), withVolume("c1"))
	s.allGetTheirs()
}

// The same of two pods with one volume of which it is not known yet where it is.
func TestSharedVolumeOnTheWay(t *testing.T) {
	s := startWithVolumes(t, "c0")
	s.addPod("p0", objects.Share(60, 100), withVolume("c0"), objects.Annotated(v1alpha1.AnnotationPolicy, "spread"))
	s.addPod("p1", objects.Share(60, 100), withVolume("c0"), objects.Annotated(v1alpha1.AnnotationPolicy, "spread"))
	s.allGetTheirs()
}

// Pods of a gang go together: each takes a volume that those before it left.
func TestVolumesOfAGang(t *testing.T) {
	s := startWithVolumes(t, "c0", "c1")
	for _, n := range []string{"0", "1"} {
		s.addPod("p"+n, objects.Share(10, 100), withVolume("c"+n), objects.InGang("g", 2))
	}
	s.awaitPlaced("p0")
	s.awaitPlaced("p1")
	apiserver.StartScheduler(t, s.cfg)
	s.awaitBoundWithVolumes("p0", "p1")
	// Nothing is left taken: who comes next is told that there is no volume, not that
	// somebody is before it.
	s.addClaim("c2")
	s.addPod("p2", objects.Share(10, 100), withVolume("c2"))
	s.awaitEvent("p2", notify.ReasonWaiting, "didn't find available persistent volumes to bind")
}

// startWithDevices has two nodes with a device of another driver each, of the class.
func startWithDevices(t *testing.T, class *resourcev1.DeviceClass) *server {
	s := startWith(t, nil)
	s.must(s.Create(t.Context(), class))
	for _, node := range []string{"n0", "n1"} {
		s.addNode(node)
		s.must(s.Create(t.Context(), &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "nic0"}}}}))
	}
	return s
}

// The same of two pods that each claim a device of another driver, of which each node
// has one.
func TestResourceClaimsOnTheWay(t *testing.T) {
	s := startWithDevices(t, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}})
	for _, name := range []string{"c0", "c1"} {
		s.must(s.Create(t.Context(), &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic"}}}}}}))
	}
	claiming := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: &name}}
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "nic"}}
		}
	}
	s.run()
	s.addPod("p0", objects.Share(10, 100), claiming("c0"))
	s.addPod("p1", objects.Share(10, 100), claiming("c1"))
	s.allGetTheirs()
}

// And of two that ask for such a device as for an extended resource: the scheduler makes
// their claims as it binds them.
func TestExtendedResourcesOfAClassOnTheWay(t *testing.T) {
	s := startWithDevices(t, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/nic")}})
	asking := func(p *corev1.Pod) {
		r := &p.Spec.Containers[0].Resources
		r.Requests, r.Limits = maps.Clone(r.Requests), maps.Clone(r.Limits)
		r.Requests["example.com/nic"], r.Limits["example.com/nic"] = resource.MustParse("1"), resource.MustParse("1")
	}
	s.run()
	s.addPod("p0", objects.Share(10, 100), asking)
	s.addPod("p1", objects.Share(10, 100), asking)
	s.allGetTheirs()
}
