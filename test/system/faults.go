// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// RefusePodPatches makes the API server refuse every change of a pod's
// annotations by the allocator, and returns what ends that. It does so at the
// test's end as well.
func (s *System) RefusePodPatches(t testing.TB) (allow func()) {
	t.Helper()
	const name = "refuse-pod-patches"
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				},
			}}},
			Validations: []admissionv1.Validation{{
				Expression: fmt.Sprintf("request.userInfo.username != 'system:serviceaccount:%s:%s'", v1alpha1.SystemNamespace, v1alpha1.AllocatorServiceAccount),
				Message:    refusal,
			}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	remove := func() {
		for _, obj := range []client.Object{binding.DeepCopy(), policy.DeepCopy()} {
			if err := client.IgnoreNotFound(s.Client.Delete(context.Background(), obj)); err != nil {
				t.Errorf("removing %s: %v", name, err)
			}
		}
	}
	t.Cleanup(remove)
	for _, obj := range []client.Object{policy.DeepCopy(), binding.DeepCopy()} {
		if err := s.Client.Create(t.Context(), obj); err != nil {
			t.Fatalf("creating %s: %v", name, err)
		}
	}
	s.mustAwait(t, "the refusal to be in force", func(ctx context.Context) error { return s.allocatorMayPatch(ctx, false) })
	return func() {
		t.Helper()
		remove()
		s.mustAwait(t, "the refusal to be lifted", func(ctx context.Context) error { return s.allocatorMayPatch(ctx, true) })
	}
}

const (
	patchProbe = "patch-probe"
	refusal    = "refused by the test"
)

// allocatorMayPatch tries, as the allocator, a dry run on a pod of ours, of what is its to write.
func (s *System) allocatorMayPatch(ctx context.Context, want bool) error {
	probe := probePod()
	probe.Name, probe.Namespace = patchProbe, probeNamespace
	if err := s.Client.Create(ctx, probe); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	defer s.Client.Delete(context.Background(), probe)
	user := *s.Cluster.REST
	user.Impersonate.UserName = "system:serviceaccount:" + v1alpha1.SystemNamespace + ":" + v1alpha1.AllocatorServiceAccount
	as, err := client.New(&user, client.Options{Scheme: s.Client.Scheme()})
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"vernier.dev/placement":"{}"}}}`))
	err = as.Patch(ctx, probe, patch, client.DryRunAll)
	// Whatever else goes wrong says nothing about the policy.
	if want && err == nil || !want && err != nil && strings.Contains(err.Error(), refusal) {
		return nil
	}
	return fmt.Errorf("the allocator's patch says %v", err)
}

// FreezeScheduler stops the default scheduler without ending it.
func (s *System) FreezeScheduler(t testing.TB) (resume func()) {
	t.Helper()
	p := s.Cluster.Process("kube-scheduler")
	must.Do(t, p.Signal(syscall.SIGSTOP))
	resume = func() {
		must.Report(t, p.Signal(syscall.SIGCONT))
	}
	t.Cleanup(resume)
	return resume
}

// RemoveAdmission takes the webhook and the policies away, as an attacker with
// the rights for it, or a mistake, would, and returns what puts them back.
func (s *System) RemoveAdmission(t testing.TB) (restore func()) {
	t.Helper()
	objects := must.Get(manifests.Read("admission"))(t)
	restore = func() {
		if err := manifests.Apply(context.Background(), s.Client, objects...); err != nil {
			t.Error(err)
			return
		}
		must.Report(t, s.awaitServing(context.Background()))
	}
	t.Cleanup(restore)
	for _, obj := range objects {
		must.Do(t, client.IgnoreNotFound(s.Client.Delete(t.Context(), obj.DeepCopy())))
	}
	s.mustAwait(t, "the policies to be gone", func(ctx context.Context) error {
		if s.refusesForged(ctx) == nil {
			return fmt.Errorf("a forged pod is still refused")
		}
		return nil
	})
	return restore
}

// LeadingAllocator is the replica that leads, by its own metrics.
func (s *System) LeadingAllocator(t testing.TB) *Process {
	t.Helper()
	var leader *Process
	s.mustAwait(t, "one allocator to lead", func(ctx context.Context) error {
		leader = nil
		for _, a := range s.Allocators {
			if !a.Running() {
				continue
			}
			text, err := a.Metrics(ctx)
			if err != nil {
				return err
			}
			if strings.Contains(text, `leader_election_master_status{name="vernier-allocator"} 1`) {
				leader = a
			}
		}
		if leader == nil {
			return fmt.Errorf("none leads")
		}
		return nil
	})
	return leader
}

// AwaitServing waits until pods that ask are served again.
func (s *System) AwaitServing(t testing.TB) {
	t.Helper()
	// Also called when a test's own context is over.
	must.Report(t, s.awaitServing(context.Background()))
}

func (s *System) mustAwait(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	must.Do(t, s.await(t.Context(), what, check))
}

func (s *System) ledger(ctx context.Context, node string) (*v1alpha1.SliceLedger, error) {
	l := &v1alpha1.SliceLedger{}
	return l, s.Client.Get(ctx, client.ObjectKey{Name: node}, l)
}

// StopAPIServer takes the API server away, and returns what brings it back and
// waits until pods that ask are served again.
func (s *System) StopAPIServer(t testing.TB) (start func()) {
	t.Helper()
	p := s.Cluster.Process("kube-apiserver")
	must.Do(t, p.Stop(t.Context()))
	start = func() {
		if p.Running() {
			return
		}
		if err := p.Start(); err != nil {
			t.Error(err)
			return
		}
		must.Report(t, s.awaitServing(context.Background()))
	}
	t.Cleanup(start)
	return start
}
