// SPDX-License-Identifier: Apache-2.0

// Package capacity owns what the node's capacity says of vernier.dev resources.
// The scheduler, quotas and autoscalers count it, and it is restored at
// once when a kubelet's restart takes it away.
//
// It touches no other resource, and the capacity decides nothing: the ledger does.
package capacity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/refused"
	"vernier.dev/vernier/nri-plugin/worker"
)

const (
	patchTimeout = 10 * time.Second
	minRetry     = 100 * time.Millisecond
	maxRetry     = 10 * time.Second
)

// Counted are the devices that make the capacity: those of which slices may be given,
// and every other that has slices. Pods ask for what they were given, whatever became
// of the device. Were it not counted, a kubelet that starts over would end running
// pods, on the node's other devices too (OutOfvernier.dev/gpu-core). The scheduler would
// keep new ones off devices that are free.
func Counted(now *device.Snapshot, granted *ledger.Index) []v1alpha1.DeviceStatus {
	counted := now.Usable()
	seen := map[string]bool{}
	for i := range counted {
		seen[counted[i].UUID] = true
	}
	granted.Each(func(_ ledger.Key, grants []ledger.Grant) {
		for _, g := range grants {
			if !seen[g.UUID] {
				seen[g.UUID] = true
				// One that has gone is of no model, and so of no class.
				device := v1alpha1.DeviceStatus{UUID: g.UUID, Mem: g.DeviceMem}
				if at := slices.IndexFunc(now.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == g.UUID }); at >= 0 {
					device.Model = now.Devices[at].Model
				}
				counted = append(counted, device)
			}
		}
	})
	return counted
}

// Of is what these devices amount to. All resources are always there, as 0 without a
// device: the kubelet does not check requests for a resource that is absent.
func Of(devices []v1alpha1.DeviceStatus) corev1.ResourceList {
	var mib v1alpha1.MiB
	for _, d := range devices {
		mib += d.Mem
	}
	n := int64(len(devices))
	percent := n * int64(v1alpha1.WholeGPU)
	return corev1.ResourceList{
		v1alpha1.ResourceCore:       *resource.NewQuantity(percent, resource.DecimalSI),
		v1alpha1.ResourceMemPercent: *resource.NewQuantity(percent, resource.DecimalSI),
		v1alpha1.ResourceMemMiB:     *resource.NewQuantity(int64(mib), resource.DecimalSI),
		// The number of slices, not of devices: the scheduler adds up the GPUs
		// that pods ask for, and pods that share one GPU count it once each.
		v1alpha1.ResourceGPUs: *resource.NewQuantity(n*v1alpha1.MaxSlicesPerDevice, resource.DecimalSI),
		// All of it, whatever is promised: a capacity that shrinks would have the kubelet end pods.
		v1alpha1.ResourceIdleCore:   *resource.NewQuantity(percent, resource.DecimalSI),
		v1alpha1.ResourceIdleMemMiB: *resource.NewQuantity(int64(mib), resource.DecimalSI),
	}
}

// Lent is what containers ask for and their slices do not have, each amount rounded up. With it
// the capacity is no less than the requests of all pods that there is room for.
func Lent(granted *ledger.Index) corev1.ResourceList {
	var core, percent, mib int64
	granted.Each(func(_ ledger.Key, grants []ledger.Grant) {
		for _, g := range grants {
			less, device := int64(g.Asked.Mem-g.Mem), int64(max(g.DeviceMem, 1))
			core += int64(g.Asked.Core - g.Core)
			mib += less
			percent += (less*int64(v1alpha1.WholeGPU) + device - 1) / device
		}
	})
	return corev1.ResourceList{
		v1alpha1.ResourceCore:       *resource.NewQuantity(core, resource.DecimalSI),
		v1alpha1.ResourceMemPercent: *resource.NewQuantity(percent, resource.DecimalSI),
		v1alpha1.ResourceMemMiB:     *resource.NewQuantity(mib, resource.DecimalSI),
	}
}

// Units is how many units of each class the devices amount to. It is never less than what the
// node's pods ask for, those of a class that was deleted included. A kubelet that starts over
// beside a lower number would end them.
func Units(devices []v1alpha1.DeviceStatus, known map[string]*classes.Class, pods []corev1.Pod) corev1.ResourceList {
	units := corev1.ResourceList{}
	for name, class := range known {
		var mems []v1alpha1.MiB
		for i := range devices {
			if d := &devices[i]; d.Model != "" && class.Models.Allows(d.Model) {
				mems = append(mems, d.Mem)
			}
		}
		units[v1alpha1.ClassResource(name)] = *resource.NewQuantity(class.Unit.On(mems...), resource.DecimalSI)
	}
	asked := corev1.ResourceList{}
	for i := range pods {
		if p := &pods[i]; p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for class, n := range podrequest.Units(&pods[i]) {
			sum := asked[v1alpha1.ClassResource(class)]
			sum.Add(n)
			asked[v1alpha1.ClassResource(class)] = sum
		}
	}
	for name, sum := range asked {
		if has := units[name]; has.Cmp(sum) < 0 {
			units[name] = sum
		}
	}
	return units
}

// AsksForUnits reports whether the capacity depends on the pod.
func AsksForUnits(pod *corev1.Pod) bool {
	return slices.ContainsFunc(podrequest.ContainersOf(pod), func(c podrequest.Container) bool { return c.Class != "" })
}

// Keeper keeps the node's capacity as it should be.
type Keeper struct {
	// Node is the node's name.
	Node string
	// Cached reads the watched node; Live writes.
	Cached client.Reader
	Live   client.Client
	// Counted are the devices. The known is false until there has been a first look at
	// them and at their slices. Before it the capacity is left as it is. So it is until
	// the Classes are read.
	Counted func() (devices []v1alpha1.DeviceStatus, known bool)
	// Granted are their slices.
	Granted func() *ledger.Index
	Classes *classes.Set
	Log     logr.Logger

	queue worker.Queue[struct{}]
}

// NewKeeper makes a keeper.
func NewKeeper(k Keeper) *Keeper {
	k.queue = worker.NewQueue[struct{}](minRetry, maxRetry)
	return &k
}

// Look asks for a comparison: the node or the devices have changed. It never
// blocks.
func (k *Keeper) Look() { k.queue.Add(struct{}{}) }

// Run keeps the capacity until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	k.Look()
	return worker.Run(ctx, k.queue, func(struct{}) (time.Duration, error) {
		err := k.Keep(ctx)
		if err != nil && ctx.Err() == nil {
			k.Log.Error(err, "Cannot set the node's capacity; trying again")
		}
		return 0, err
	})
}

var errClasses = errors.New("the GPU classes have not been read yet")

// Keep compares once, and patches where it differs. Allocatable is set along
// with capacity: the kubelet copies it only every few seconds.
func (k *Keeper) Keep(ctx context.Context) error {
	devices, known := k.Counted()
	if !known {
		return nil
	}
	if !k.Classes.HasSynced() {
		return errClasses // tried again: nobody says when they have been
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	node := &corev1.Node{}
	if err := k.Cached.Get(ctx, client.ObjectKey{Name: k.Node}, node); err != nil {
		return fmt.Errorf("reading node %s: %w", k.Node, err)
	}
	pods := &corev1.PodList{}
	if err := k.Cached.List(ctx, pods); err != nil {
		return fmt.Errorf("listing the pods of node %s: %w", k.Node, err)
	}
	want := Of(devices)
	for name, lent := range Lent(k.Granted()) {
		sum := want[name]
		sum.Add(lent)
		want[name] = sum
	}
	maps.Copy(want, Units(devices, k.Classes.All(), pods.Items))
	before := node.DeepCopy()
	node.Status.Capacity, node.Status.Allocatable = with(node.Status.Capacity, want), with(node.Status.Allocatable, want)
	if equality.Semantic.DeepEqual(before.Status, node.Status) {
		return nil
	}
	if err := k.Live.Status().Patch(ctx, node, client.MergeFrom(before)); err != nil {
		refused.Count(refused.Capacity, err)
		return fmt.Errorf("patching the capacity of node %s: %w", k.Node, err)
	}
	k.Log.Info("Set the node's capacity", "gpus", len(devices))
	return nil
}

// with is the list with the amounts that are wanted, and without classes that are not.
func with(list, want corev1.ResourceList) corev1.ResourceList {
	now := maps.Clone(want)
	for name, quantity := range list {
		if _, wanted := want[name]; !wanted && v1alpha1.ClassOf(name) == "" {
			now[name] = quantity
		}
	}
	return now
}
