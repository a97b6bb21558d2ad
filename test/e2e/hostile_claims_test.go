// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/dra"
	"vernier.dev/vernier/test/must"
)

// claimDriver is another system's, with devices that are not what they are called.
const claimDriver = "gpu.example.org"

// A claim of another driver's gives no GPU, neither beside a share nor without one, by whatever
// name the device comes; and what is no GPU comes with a share.
func TestHostileClaims(t *testing.T) {
	node := sys.Node(small)
	uuid := ledger(t, small).Status.Devices[0].UUID
	ids := map[string]string{
		"renamed": claimDriver + "/card=renamed", "link": claimDriver + "/card=link",
		"ours": v1alpha1.CDIKind + "=" + uuid, "zero": claimDriver + "/card=zero",
	}
	devices := map[string]dra.Device{}
	for name, id := range ids {
		devices[name] = dra.Device{CDI: id, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"name": {StringValue: &name}}}
	}
	stop := must.Get(dra.Driver{Name: claimDriver, Devices: devices, Spec: fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"%s/card","devices":[
		{"name":"renamed","containerEdits":{"deviceNodes":[{"path":"/dev/innocent","type":"c","major":195,"minor":0}]}},
		{"name":"link","containerEdits":{"deviceNodes":[{"path":"/dev/../dev/nvidiactl","hostPath":"/dev/null"}]}},
		{"name":"zero","containerEdits":{"deviceNodes":[{"path":"/dev/other","hostPath":"/dev/zero"}]}}]}`, claimDriver),
	}.Start(t.Context(), sys.Kube, node.Node))(t)
	t.Cleanup(func() { must.Report(t, stop()) })

	claims := sys.Kube.ResourceV1().ResourceClaims(namespace)
	claiming := func(p *pod, device string) *pod {
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "card", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: claimDriver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes['%s'].name == '%s'", claimDriver, device)}}},
			}}}}}}
		must.Get(claims.Create(t.Context(), claim, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { must.Report(t, claims.Delete(context.Background(), claim.Name, metav1.DeleteOptions{})) })
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "card", ResourceClaimName: &claim.Name}}
		p.main().Resources.Claims = []corev1.ResourceClaim{{Name: "card"}}
		return p
	}
	for device, says := range map[string]string{"renamed": "/dev/innocent past its slices", "link": "nvidiactl past its slices", "ours": v1alpha1.CDIKind + "=" + uuid + " past its slices"} {
		for _, p := range []*pod{newPod("claims-" + device).on(small), newPod("claims-beside-"+device).on(small).share(10, 10)} {
			made := create(t, claiming(p, device))
			awaitEvent(t, made, says)
			if now := get(t, made); now.Status.Phase != corev1.PodPending {
				t.Errorf("pod %s is %s", p.Name, now.Status.Phase)
			}
			remove(t, made) // a device has one claim at a time
		}
	}
	honest := awaitReady(t, create(t, claiming(newPod("claims-other").on(small).share(10, 10).args("--hold"), "zero")))
	if said := tryIn(t, honest, "head -c 1 /dev/other | wc -c"); said != "1\n" {
		t.Errorf("a device that is no GPU, beside a share: %q", said)
	}
	remove(t, honest)
}
