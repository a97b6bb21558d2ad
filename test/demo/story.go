// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
)

// request is one pod of the demo: its limits in words a reader recognises.
type request struct {
	name   string
	limits map[corev1.ResourceName]int64
	args   []string
}

// story is the demo itself, told in the order in which a newcomer asks.
func story(ctx context.Context, sys *system.System) error {
	ledger := &v1alpha1.SliceLedger{}
	if err := sys.Client.Get(ctx, client.ObjectKey{Name: node}, ledger); err != nil {
		return err
	}
	gpus := ledger.Status.Devices
	// Small enough for a GPU of 16 GiB.
	sharing := []request{
		{"train", limits(v1alpha1.ResourceCore, 60, v1alpha1.ResourceMemPercent, 50), []string{"--alloc", "6144", "--hold"}},
		{"infer", limits(v1alpha1.ResourceCore, 25), []string{"--alloc", "2048", "--hold"}},
		{"batch", limits(v1alpha1.ResourceCore, 15, v1alpha1.ResourceMemMiB, 1024), []string{"--hold"}},
	}
	ends := sharing[0].name   // so that the next has room
	for i := range gpus[1:] { // none is left for the next
		ends = fmt.Sprintf("whole-%d", i+1)
		sharing = append(sharing, request{ends, limits(v1alpha1.ResourceCore, 100), []string{"--hold"}})
	}
	say("%d pods share %d GPU(s): 60 %%, 25 %%, 15 %% with 1024 MiB, and each further GPU whole", len(sharing), len(gpus))
	for _, r := range sharing {
		if err := create(ctx, sys, r); err != nil {
			return err
		}
		if err := await(ctx, sys, r.name, corev1.PodRunning); err != nil {
			return err
		}
		fmt.Printf("  %s is running\n", r.name)
	}

	say("what a CUDA program sees inside each container (a GPU has %d MiB)", gpus[0].Mem)
	for _, r := range sharing {
		if err := output(ctx, sys, r.name); err != nil {
			return err
		}
	}

	say("late asks for 50 %% and waits; its event says what is missing")
	late := request{"late", limits(v1alpha1.ResourceCore, 50), []string{"--hold"}}
	if err := create(ctx, sys, late); err != nil {
		return err
	}
	if err := reason(ctx, sys, late.name); err != nil {
		return err
	}

	say("the ledger: kubectl vernier")
	if err := sys.Kubectl(ctx, os.Stdout, "vernier", "-n", namespace); err != nil {
		return err
	}

	say("%s ends, and late starts", ends)
	if err := sys.Kube.CoreV1().Pods(namespace).Delete(ctx, ends, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := await(ctx, sys, late.name, corev1.PodRunning); err != nil {
		return err
	}
	fmt.Println("  late is running")

	say("greedy has 2048 MiB and allocates until it is refused")
	greedy := request{"greedy", limits(v1alpha1.ResourceCore, 10, v1alpha1.ResourceMemMiB, 2048), []string{"--alloc-until-fail"}}
	if err := create(ctx, sys, greedy); err != nil {
		return err
	}
	if err := await(ctx, sys, greedy.name, corev1.PodSucceeded); err != nil {
		return err
	}
	if err := output(ctx, sys, greedy.name); err != nil {
		return err
	}

	say("at the end: kubectl vernier slices")
	return sys.Kubectl(ctx, os.Stdout, "vernier", "slices", "-n", namespace)
}

func limits(pairs ...any) map[corev1.ResourceName]int64 {
	out := map[corev1.ResourceName]int64{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(corev1.ResourceName)] = int64(pairs[i+1].(int))
	}
	return out
}

// create makes the pod once the webhook has been heard: in its first seconds, or on a
// machine that is short of time, the API server may not reach it, or not ask it yet.
func create(ctx context.Context, sys *system.System, r request) error {
	list := corev1.ResourceList{}
	for name, n := range r.limits {
		list[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	grace := int64(2)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: system.DemoImage, ImagePullPolicy: corev1.PullNever,
				Command:   append([]string{"/bin/cudademo"}, r.args...),
				Resources: corev1.ResourceRequirements{Limits: list},
			}},
		},
	}
	pods := sys.Kube.CoreV1().Pods(namespace)
	var unheard error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		made, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case err != nil && (strings.Contains(err.Error(), "failed calling webhook") || strings.Contains(err.Error(), "ValidatingAdmissionPolicy")):
			unheard = err
			return false, nil
		case err != nil:
			return false, err
		case made.Annotations[v1alpha1.AnnotationShares] != "":
			return true, nil
		}
		// Nobody has asked the webhook, nor refused the pod for it: it would never start.
		unheard = errors.New("the webhook was not asked")
		now := int64(0)
		return false, pods.Delete(ctx, r.name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("pod %s could not be made: %w", r.name, errors.Join(unheard, err))
	}
	return err
}

func await(ctx context.Context, sys *system.System, name string, phase corev1.PodPhase) error {
	var last *corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		p, err := sys.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = p
		return p.Status.Phase == phase, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("pod %s is %s, not %s: %w\n%s", name, last.Status.Phase, phase, err, strings.Join(events(ctx, sys, name), "\n"))
	}
	return err
}

// output prints what the pod has printed, once it has printed anything.
func output(ctx context.Context, sys *system.System, name string) error {
	var text string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		text, err = sys.Logs(ctx, namespace, name, "main")
		return text != "", err
	})
	fmt.Printf("  %s\n    %s\n", bold(name), strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    "))
	return err
}

func reason(ctx context.Context, sys *system.System, name string) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		for _, e := range events(ctx, sys, name) {
			if strings.Contains(e, "needs") {
				fmt.Println("  " + e)
				return true, nil
			}
		}
		return false, nil
	})
}

func events(ctx context.Context, sys *system.System, name string) []string {
	return sys.Events(ctx, namespace, "involvedObject.name="+name)
}
