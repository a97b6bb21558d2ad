// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"context"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// Who hears of a change asks the filters after it, and they know of it: the one volume, and
// the one device of another driver, is given to another pod and taken back time and again.
func TestChangesAreToldWhenTheFiltersKnow(t *testing.T) {
	nic := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}}
	offered := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "nic.example.com", NodeName: ptr.To("a"), Pool: resourcev1.ResourcePool{Name: "a", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "nic0"}}}}
	deviceClaim := func(name string) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1"}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}}}
	}
	oneGi := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{StorageClassName: "local",
		Capacity: oneGi, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
	data := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("local"),
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: oneGi}}}

	for _, tt := range []struct {
		name    string
		objects []runtime.Object
		wants   func(*corev1.Pod)
		// give and take back what the pod wants.
		give func(ctx context.Context, c kubernetes.Interface, version string, taken bool) error
	}{
		{"a device", []runtime.Object{nic, offered, deviceClaim("mine"), deviceClaim("theirs")}, claiming("mine"),
			func(ctx context.Context, c kubernetes.Interface, version string, taken bool) error {
				theirs := deviceClaim("theirs")
				theirs.ResourceVersion = version
				if taken {
					theirs.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
						Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "nic.example.com", Pool: "a", Device: "nic0"}}}}
				}
				_, err := c.ResourceV1().ResourceClaims("ns").Update(ctx, theirs, metav1.UpdateOptions{})
				return err
			}},
		{"a volume", []runtime.Object{class, disk, data}, claim,
			func(ctx context.Context, c kubernetes.Interface, version string, taken bool) error {
				v := disk.DeepCopy()
				v.ResourceVersion = version
				if taken {
					v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "theirs", UID: "theirs"}
				}
				_, err := c.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
				return err
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			client := fake.NewClientset(tt.objects...)
			factory := informers.NewSharedInformerFactory(client, 0)
			f, err := New(ctx, client, factory)
			if err != nil {
				t.Fatal(err)
			}
			// begun is there as soon as the filters have what there was at first.
			begun, refused := make(chan struct{}), make(chan bool)
			if err := f.OnChange(func(any, any) {
				select {
				case <-begun:
				default:
					return
				}
				c, err := f.Start(ctx, gpuPod("p", tt.wants))
				if err != nil {
					t.Error(err)
				}
				reasons, err := c.Refusals(ctx, "a")
				if err != nil {
					t.Error(err)
				}
				refused <- len(reasons) > 0
			}); err != nil {
				t.Fatal(err)
			}
			factory.Start(ctx.Done())
			if !cache.WaitForCacheSync(ctx.Done(), f.HasSynced) {
				t.Fatal("the filters did not fill")
			}
			f.SetNode(gpuNode("a"))
			close(begun)
			for i := range 200 {
				taken := i%2 == 0
				if err := tt.give(ctx, client, strconv.Itoa(i+2), taken); err != nil {
					t.Fatal(err)
				}
				if got := <-refused; got != taken {
					t.Fatalf("change %d: the node is refused: %v, though the other has it: %v", i, got, taken)
				}
			}
		})
	}
}
