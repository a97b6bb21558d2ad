// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// holder is a pod that has slices and that nobody starts: the agent takes slices of
// vanished pods back.
type holder struct {
	*corev1.Pod
	shares string
}

// holds makes the sandbox the holder's.
func (h *holder) holds(pod *cri.PodSandboxConfig) {
	pod.Metadata.Uid = string(h.UID)
	pod.Annotations = map[string]string{
		v1alpha1.AnnotationShares:          h.shares,
		v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue,
	}
}

func sandboxOf(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: metav1.NamespaceDefault, Uid: name}}
}

// empty takes every slice out of the node's ledger: no allocator does.
func empty(b *testing.B, n *system.Node) {
	b.Helper()
	await(b, "the ledger of "+n.Name+" to be empty", func(ctx context.Context) error {
		l, err := ledgerOf(ctx, n)
		if err != nil {
			return err
		}
		l.Spec.Devices = nil
		return sys.Client.Update(ctx, l)
	})
}

func ledgerOf(ctx context.Context, n *system.Node) (*v1alpha1.SliceLedger, error) {
	l := &v1alpha1.SliceLedger{}
	return l, sys.Client.Get(ctx, client.ObjectKey{Name: n.Name}, l)
}

// grant gives a new pod a slice of one of the node's GPUs, as the allocator would.
// of says its mode and place.
func grant(b *testing.B, n *system.Node, name string, device int, share v1alpha1.Share, of v1alpha1.Slice) (uuid string, h *holder) {
	b.Helper()
	shares := must.Get((&v1alpha1.Shares{Version: v1alpha1.Version, Containers: map[string]v1alpha1.Share{containerName: share}}).Encode())(b)
	pods := sys.Kube.CoreV1().Pods(metav1.NamespaceDefault)
	pod := must.Get(pods.Create(b.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "bench/never"}},
			Containers:      []corev1.Container{{Name: containerName, Image: system.DemoImage}},
		},
	}, metav1.CreateOptions{}))(b)
	b.Cleanup(func() { must.Report(b, pods.Delete(context.Background(), pod.Name, metav1.DeleteOptions{})) })
	await(b, "the ledger of "+n.Name+" to take a slice", func(ctx context.Context) error {
		l, err := ledgerOf(ctx, n)
		if err != nil {
			return err
		}
		d := l.Status.Devices[device]
		uuid, of.Pod, of.Owner, of.Ctr, of.Core = d.UUID, pod.UID, pod.Namespace+"/"+pod.Name, containerName, share.Core
		if of.Mem, err = share.Memory(d.Mem); err != nil {
			return err
		}
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{
			UUID: d.UUID, Core: v1alpha1.WholeGPU, Mem: d.Mem, Slices: []v1alpha1.Slice{of},
		})
		return sys.Client.Update(ctx, l)
	})
	return uuid, &holder{pod, shares}
}
