// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
)

// install applies what a user applies, except what runs processes: those run
// beside the cluster's own, where a test can end them.
func (s *System) install(ctx context.Context) error {
	objects, err := s.manifests.Read("namespace.yaml", "crds", "rbac", "admission", "webhook.yaml")
	if err != nil {
		return err
	}
	for _, obj := range objects {
		switch obj.GetKind() {
		case "Deployment":
			continue
		case "Service":
			// It selects no pods here: publish says where the processes are.
			unstructured.RemoveNestedField(obj.Object, "spec", "selector")
		}
		if err := manifests.Apply(ctx, s.Client, obj); err != nil {
			return err
		}
	}
	return s.await(ctx, "the SliceLedger resource to be served", func(ctx context.Context) error {
		return s.Client.List(ctx, &v1alpha1.SliceLedgerList{})
	})
}

// Namespaces makes namespaces, labelled for injection where true.
func (s *System) Namespaces(ctx context.Context, inject map[string]bool) error {
	for name, labelled := range inject {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if labelled {
			ns.Labels = map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}
		}
		if _, err := s.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
		err := s.await(ctx, "the default service account of "+name, func(ctx context.Context) error {
			_, err := s.Kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const probeNamespace = "vernier-probe"

// awaitServing waits until a pod that asks is admitted, written down and gated,
// until a forged one is refused, and until every node's ledger is ready.
func (s *System) awaitServing(ctx context.Context) error {
	err := s.await(ctx, "the namespace of the probe", func(ctx context.Context) error {
		err := s.Namespaces(ctx, map[string]bool{probeNamespace: true})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	s.step("waiting until the webhook answers, the policies are in force and the ledgers are ready")
	if err := s.await(ctx, "the webhook to admit a pod", s.admits); err != nil {
		return err
	}
	if err := s.await(ctx, "the policies to refuse a forged pod", s.refusesForged); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if err := s.await(ctx, "node "+n.Name+" to be ready for shares", func(ctx context.Context) error { return s.ready(ctx, n) }); err != nil {
			return err
		}
	}
	return nil
}

func probePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: probeNamespace},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "none",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("1")}},
		}}},
	}
}

func (s *System) admits(ctx context.Context) error {
	made, err := s.Kube.CoreV1().Pods(probeNamespace).Create(ctx, probePod(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if made.Annotations[v1alpha1.AnnotationShares] == "" || len(made.Spec.SchedulingGates) != 1 {
		return fmt.Errorf("the webhook is not called yet")
	}
	return nil
}

func (s *System) refusesForged(ctx context.Context) error {
	p := probePod()
	p.Namespace = metav1.NamespaceDefault
	_, err := s.Kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return nil
	}
	return fmt.Errorf("a pod that asks in a namespace without the label is not refused: %w", err)
}

func (s *System) ready(ctx context.Context, n *Node) error {
	// The ledger shows what the agent last wrote; the agent knows what is now, and
	// in a pod the kubelet asks it.
	if n.Agent != nil {
		if _, err := n.Agent.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", agentHealth), ""); err != nil {
			return err
		}
	}
	l, err := s.ledger(ctx, n.Name)
	if err != nil {
		return err
	}
	node, err := s.Kube.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	// An allocator of a release before may not know the condition, or leave it as it was.
	reachable := n.Agent == nil || meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionAgentReachable)
	if reachable && meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionReady) && !node.Status.Allocatable.Name(v1alpha1.ResourceCore, resource.DecimalSI).IsZero() {
		return nil
	}
	return fmt.Errorf("the ledger's conditions are %+v", l.Status.Conditions)
}

// await polls until check succeeds; its last error is in the failure.
func (s *System) await(ctx context.Context, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waited in vain for %s: %w", what, last)
	}
	return nil
}
