// SPDX-License-Identifier: Apache-2.0

package scaleup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

func isStartup(t corev1.Taint) bool { return t.Key == v1alpha1.TaintAgentNotReady }

// rooms are the nodes that take slices: fresh ones, on which waiting pods are about to be placed, and full ones. start are
// the nodes whose startup taint is to go.
func (k *Keeper) rooms(now time.Time) (fresh, full []*placement.Node, start []*corev1.Node) {
	takes := map[string]time.Time{}
	for _, room := range k.Cache.Index.Room() {
		node := k.Node(room.Name)
		if node == nil {
			continue
		}
		since, known := k.takes[room.Name]
		starts := slices.ContainsFunc(node.Spec.Taints, isStartup)
		if !known || starts && !ready(node) {
			since = now
		}
		takes[room.Name] = since
		switch {
		case starts && now.Sub(since) >= ordered:
			start = append(start, node)
			fallthrough
		case starts, now.Sub(since) < settled:
			fresh = append(fresh, room)
		default:
			full = append(full, room)
		}
	}
	k.takes = takes
	return fresh, full, start
}

// ready reports whether the node is, by its kubelet, which shows the capacity: an autoscaler is never to see a
// node that has started without that.
func ready(node *corev1.Node) bool {
	_, shown := node.Status.Allocatable[v1alpha1.ResourceCore]
	return shown && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
}

// start removes the startup taint of nodes, if they are as they were seen.
func (k *Keeper) start(ctx context.Context, now time.Time, nodes []*corev1.Node) (err error) {
	for _, node := range nodes {
		left := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isStartup)
		patch, wrong := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": left}})
		if wrong != nil {
			return wrong
		}
		wrong = k.Client.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, client.RawPatch(types.MergePatchType, patch))
		k.takes[node.Name] = now // also after a failure: it is tried again after ordered
		if wrong != nil && !apierrors.IsConflict(wrong) && !apierrors.IsNotFound(wrong) {
			err = errors.Join(err, fmt.Errorf("removing the startup taint of node %s: %w", node.Name, wrong))
		}
	}
	return err
}
