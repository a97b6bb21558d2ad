// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// inventory is what a node has for hardware, by device.
type inventory []hardware

type hardware struct {
	uuid string
	mem  v1alpha1.MiB
	// gone is a device that fell off the bus. It comes back as it was.
	gone bool
}

// maxDevices of a node.
const maxDevices = 4

// upheave changes what a node is: its devices, or whether it is there at all.
func (w *world) upheave(n *nodeInTest) {
	switch w.rand.Intn(6) {
	case 0, 1:
		n.unplug()
	case 2:
		for i := range n.has {
			n.has[i].gone = false
		}
	case 3:
		n.addDevice()
	case 4:
		n.dropDevice()
	default:
		if n.lost {
			n.comeBack()
		} else if w.rand.Intn(4) == 0 {
			n.perish()
		}
	}
}

// unplug has a device fall off the bus. What uses it ends; the kubelet starts it
// again and again.
func (n *nodeInTest) unplug() {
	if n.lost || len(n.has) == 0 {
		return
	}
	d := &n.has[n.world.rand.Intn(len(n.has))]
	d.gone = true
	for _, c := range n.containers() {
		if slices.ContainsFunc(n.running[c], func(r runningSlice) bool { return r.uuid == d.uuid }) {
			delete(n.running, c)
			if p := n.world.find(c.pod); p != nil {
				n.tell(p, c.name, waitingFor("CrashLoopBackOff"), "")
			}
		}
	}
}

// addDevice puts a device of some size into the node.
func (n *nodeInTest) addDevice() {
	if n.lost || len(n.has) >= maxDevices {
		return
	}
	n.own(hardware{uuid: fmt.Sprintf("GPU-%s-%d", n.name, len(n.ever)), mem: v1alpha1.MiB(objects.DeviceMiB/2 + n.world.rand.Intn(objects.DeviceMiB))})
	n.advertise()
}

func (n *nodeInTest) own(d hardware) {
	n.has, n.ever[d.uuid] = append(n.has, d), d.mem
}

// dropDevice takes one out that nothing was granted on and nothing uses.
func (n *nodeInTest) dropDevice() {
	if n.lost || len(n.has) < 2 {
		return
	}
	i := n.world.rand.Intn(len(n.has))
	uuid := n.has[i].uuid
	uses := func(r runningSlice) bool { return r.uuid == uuid }
	for _, held := range n.running {
		if slices.ContainsFunc(held, uses) {
			return
		}
	}
	for _, d := range n.world.ledger(n.name).Spec.Devices {
		if d.UUID == uuid && len(d.Slices) > 0 {
			return
		}
	}
	n.has = slices.Delete(n.has, i, i+1)
	n.advertise()
}

// advertise is the agent that says on the Node object what it has, as the scheduler
// counts it.
func (n *nodeInTest) advertise() {
	w := n.world
	node := &corev1.Node{}
	w.must(w.api.Get(context.Background(), types.NamespacedName{Name: n.name}, node))
	node.Status = objects.Node(n.name).Status
	advertiseUnits(node)
	var mem v1alpha1.MiB
	for _, d := range n.has {
		mem += d.mem
	}
	percent := *resource.NewQuantity(int64(len(n.has))*int64(v1alpha1.WholeGPU), resource.DecimalSI)
	node.Status.Allocatable[v1alpha1.ResourceCore], node.Status.Allocatable[v1alpha1.ResourceMemPercent] = percent, percent
	node.Status.Allocatable[v1alpha1.ResourceMemMiB] = *resource.NewQuantity(int64(mem), resource.DecimalSI)
	node.Status.Allocatable[v1alpha1.ResourceIdleMemMiB] = *resource.NewQuantity(int64(mem), resource.DecimalSI)
	node.Status.Capacity = node.Status.Allocatable
	w.putStatus(node)
}

// perish is the end of a machine: nothing runs on it any more, and whoever cleans up
// deletes its Node, its ledger and its pods.
func (n *nodeInTest) perish() {
	w := n.world
	n.lost = true
	clear(n.running)
	clear(n.fenced)
	n.ghosts = nil
	w.destroy(n.name)
	node := &corev1.Node{}
	w.must(w.api.Get(context.Background(), types.NamespacedName{Name: n.name}, node))
	w.must(w.api.Delete(context.Background(), node))
	w.notify(node, true)
	for _, p := range slices.Clone(w.live) {
		if p.Spec.NodeName == n.name {
			w.vanish(p.DeepCopy())
		}
	}
	n.watch()
}

// comeBack is the same machine, installed anew.
func (n *nodeInTest) comeBack() {
	w := n.world
	n.lost = false
	w.createNode(n.name)
	n.advertise()
	n.report()
}

// works tells whether a device is there and answers.
func (n *nodeInTest) works(uuid string) bool {
	return !n.unhealthy[uuid] && slices.ContainsFunc(n.has, func(d hardware) bool { return d.uuid == uuid && !d.gone })
}

// list is the devices as the agent sees them.
func (n *nodeInTest) list() (seen []v1alpha1.DeviceStatus) {
	for i, d := range n.has {
		if !d.gone {
			seen = append(seen, v1alpha1.DeviceStatus{UUID: d.uuid, Index: int32(i), Minor: int32(i), Model: n.world.modelOf(d.uuid), Mem: d.mem, Healthy: !n.unhealthy[d.uuid]})
		}
	}
	return seen
}

// heal ends all that keeps the node from working.
func (n *nodeInTest) heal() {
	if n.lost {
		n.comeBack()
	}
	clear(n.unhealthy)
	for i := range n.has {
		n.has[i].gone = false
	}
}
