// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/certs"
)

// stolen is a client with a token of one of the parts, of a node's agent where a node is named.
func stolen(t *testing.T, account, node string) (kubernetes.Interface, client.Client) {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		n := must.Get(sys.Kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t)
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: n.UID}
	}
	made := must.Get(sys.Kube.CoreV1().ServiceAccounts(v1alpha1.SystemNamespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{}))(t)
	config := rest.AnonymousClientConfig(sys.Cluster.REST)
	config.BearerToken = made.Status.Token
	set := must.Get(kubernetes.NewForConfig(config))(t)
	c := must.Get(client.New(config, client.Options{Scheme: sys.Client.Scheme()}))(t)
	return set, c
}

// A stolen token of a part is worth the part's duties: the worst that each was good for is
// refused on a real cluster. deploy/hostile_*_test.go has the other forgeries.
func TestHostileTokens(t *testing.T) {
	victim := newPod("victim").in(metav1.NamespaceSystem)
	victim.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
	pod := create(t, victim)
	refuse := func(what string, err error, says string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want it refused with %q", what, err, says)
		}
	}
	dry := []string{metav1.DryRunAll}

	kube, objects := stolen(t, v1alpha1.AllocatorServiceAccount, "")
	_, err := kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","image":"evil"}]}}`), metav1.PatchOptions{DryRun: dry})
	refuse("image of a privileged pod of the system", err, "the allocator may change and delete only pods that carry it")
	refuse("the pod's deletion", kube.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{DryRun: dry}),
		"the allocator may change and delete only pods that carry it")
	// Others write ledgers as well.
	refuse("a device that the node does not have", retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		forged := ledger(t, small)
		forged.Spec.Devices = append(forged.Spec.Devices, v1alpha1.DeviceLedger{UUID: "GPU-forged", Core: v1alpha1.WholeGPU, Mem: 1 << 20})
		return objects.Update(t.Context(), forged, client.DryRunAll)
	}), "a device that is new or larger must be as in status.devices")

	kube, _ = stolen(t, v1alpha1.WebhookServiceAccount, "")
	_, err = kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), certs.ConfigurationName, types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/webhooks/0/rules","value":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"]}]}]`),
		metav1.PatchOptions{DryRun: dry})
	refuse("its configuration pointed to every request", err, "the webhook may change clientConfig.caBundle only")
	_, err = kube.CoreV1().Secrets(v1alpha1.SystemNamespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "forged"}}, metav1.CreateOptions{DryRun: dry})
	refuse("a Secret", err, "forbidden")

	kube, objects = stolen(t, v1alpha1.NodeServiceAccount, small)
	forged := ledger(t, large)
	forged.Status.Devices = nil
	refuse("another node's ledger", objects.Status().Update(t.Context(), forged, &client.SubResourceUpdateOptions{UpdateOptions: client.UpdateOptions{DryRun: dry}}),
		"own node, ledger and account only")
	_, err = kube.EventsV1().Events(pod.Namespace).Create(t.Context(), &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "forged-"}, EventTime: metav1.NowMicro(), Action: "Binding", Reason: "Scheduled", Type: corev1.EventTypeNormal,
		ReportingController: "default-scheduler", ReportingInstance: small, Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
	}, metav1.CreateOptions{DryRun: dry})
	refuse("an event of the scheduler", err, "a node agent may write its own events only")
}
