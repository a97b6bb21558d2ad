// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/test/objects"
)

// A validating policy of the operator's that refuses the gate patch: the pod has an event with the
// policy's words and holds nothing, and is placed when the policy is gone, by the allocator's own
// rights.
func TestPolicyRefusesTheGatePatch(t *testing.T) {
	s := startWith(t, nil)
	s.addNode("gpu-1")
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "operators"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: ptr.To(admissionv1.Fail),
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}},
		Validations: []admissionv1.Validation{{
			Expression: "has(object.spec.schedulingGates) || !has(oldObject.spec.schedulingGates)", Message: "no pod is let go on Fridays",
		}},
	}}
	s.must(s.Create(t.Context(), policy))
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "operators"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	s.must(s.Create(t.Context(), binding))
	// Of a pod without a share no policy of Vernier's refuses it.
	s.must(s.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "probe"}, Spec: corev1.PodSpec{
		SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/hold"}}, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}))
	s.await("the policy to be in force", func(ctx context.Context) (bool, error) {
		p := s.pod("probe")
		p.Spec.SchedulingGates = nil
		err := s.Update(ctx, p, client.DryRunAll)
		if err != nil && strings.Contains(err.Error(), policy.Spec.Validations[0].Message) {
			return true, nil
		}
		return false, err
	})
	s.run()
	s.addPod("p", objects.Share(100, 1000))
	s.awaitEvent("p", notify.ReasonWriteRefused, "no pod is let go on Fridays")
	uid := s.pod("p").UID
	s.await("its slices to go back", func(context.Context) (bool, error) { return grants.Placement(s.ledger("gpu-1"), uid) == nil, nil })
	s.must(s.Delete(t.Context(), binding))
	s.awaitPlaced("p")
}
