// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Course is when what happened to a pod, since it was created.
type Course struct {
	// Evicted: the last other pod of its namespace was asked to end; 0 if none was.
	Evicted time.Duration
	// Granted: it has a place.
	Granted time.Duration
	Running time.Duration
}

// Run makes the pod, and returns when it runs.
func (s *System) Run(ctx context.Context, p *corev1.Pod) (c Course, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := s.Kube.CoreV1().Pods(p.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return c, err
	}
	changes, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return c, err
	}
	defer changes.Stop()
	begun := time.Now()
	if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return c, err
	}
	ends := map[types.UID]bool{}
	for e := range changes.ResultChan() {
		is, ok := e.Object.(*corev1.Pod)
		switch {
		case !ok:
		case is.Name != p.Name:
			if is.DeletionTimestamp != nil && !ends[is.UID] {
				ends[is.UID], c.Evicted = true, time.Since(begun)
			}
		case is.Status.Phase == corev1.PodRunning:
			c.Running = time.Since(begun)
			return c, nil
		case len(is.Spec.SchedulingGates) == 0 && c.Granted == 0:
			c.Granted = time.Since(begun)
		}
	}
	return c, fmt.Errorf("pod %s does not run after %v: %v", p.Name, time.Since(begun).Round(time.Second), s.Events(context.WithoutCancel(ctx), p.Namespace, "involvedObject.name="+p.Name))
}
