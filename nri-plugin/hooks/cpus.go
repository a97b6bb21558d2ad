// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"cmp"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/numa"
)

// ReasonUnbound: a container that asks for the CPUs beside its GPUs is not held to them.
const ReasonUnbound = "CPUsNotBound"

// cpuDecision is what a creation decides on the container's CPUs.
type cpuDecision struct {
	numa.CPUs
	// bind: the runtime is asked to hold the container to Set.
	bind bool
	// unbound says why it is not, where the pod asks for it.
	unbound string
}

// decideCPUs compares the CPUs that the kubelet holds the container to with its GPUs, and
// where the kubelet holds it to none may bind it to those of the GPUs' NUMA node. A set of the
// kubelet's is never touched: it has one for each container under CPU manager policy static,
// and none under policy none.
func (p *Plugin) decideCPUs(pod *api.PodSandbox, request *podrequest.Request, c *api.Container, grants []ledger.Grant, index *ledger.Index, now *device.Snapshot) (d cpuDecision, err error) {
	if d.CPUs, err = cpusOf(request, c.GetLinux().GetResources()); err != nil {
		return d, err
	}
	topology := request.Topology
	if !ofOneNUMANode(topology) {
		return d, nil
	}
	nodes := p.nodes()
	if topology.Level == v1alpha1.TopologyNUMA && topology.Required {
		if err := p.follow(pod, topology, c.GetName(), d.Set, nodes, index, now); err != nil {
			return d, err
		}
	}
	if p.BindCPUs && d.Set.IsEmpty() && len(nodes) > 1 {
		p.bind(&d, pod, c, nodes, grants, now)
	}
	return d, nil
}

// ofOneNUMANode reports whether the GPUs are to be of one NUMA node: those below one host bridge
// are as well, and those that NVLink joins are not, as a rule.
func ofOneNUMANode(topology v1alpha1.TopologyRequest) bool {
	return topology.Level == v1alpha1.TopologyNUMA || topology.Level == v1alpha1.TopologyPCIe
}

// follow refuses the container while its pod's CPUs, where they are of one NUMA node, are of
// another than its GPUs, and has the allocator move the slices. The CPUs cannot follow: the
// kubelet has given them for the pod's life. It knows nothing of our GPUs when it chooses.
//
// The shared CPUs that a container without CPUs of its own has do change. Once they are no
// longer of one NUMA node, nothing is refused, as soon as the ledger says so too: until then
// the slices may be moved.
func (p *Plugin) follow(pod *api.PodSandbox, topology v1alpha1.TopologyRequest, container string, cpus cpuset.CPUSet, nodes numa.Nodes, index *ledger.Index, now *device.Snapshot) error {
	var off v1alpha1.DeviceStatus
	var is bool
	devices := index.Devices(uid(pod))
	p.Misaligned.Compare(uid(pod), container, cpus, nodes)
	node, follows := p.Misaligned.Find(uid(pod))
	if follows {
		off, is = numa.Off(node, devices, now)
	}
	if !is {
		var one bool
		if node, one = nodes.Of(cpus); one {
			off, is = numa.Off(node, devices, now)
		}
		follows = false
	}
	if !is {
		if node, moves := index.Misaligned(uid(pod)); moves {
			if _, is := numa.Off(node, devices, now); is {
				return fmt.Errorf("its CPUs are no longer of NUMA node %d, and its slices may still be moved to GPUs of that; it is tried again", node)
			}
		}
		return nil
	}
	text := fmt.Sprintf("annotation %s is %s, and the kubelet has given the pod CPUs of NUMA node %d while GPU %s is of NUMA node %d",
		v1alpha1.AnnotationTopology, topology, node, off.UUID, *off.NUMA)
	if p.Table.Holds(uid(pod)) {
		return fmt.Errorf("%s, where other containers of the pod run: delete the pod, and set the kubelet's topologyManagerScope to pod and its topologyManagerPolicy to single-numa-node", text)
	}
	if !follows {
		p.Misaligned.Add(uid(pod), container, node)
	}
	return fmt.Errorf("%s; its slices are moved to GPUs of NUMA node %d as soon as they have room, and it is tried again. If that lasts, delete the pod, or ask for numa without :required", text, node)
}

// bind decides to hold the container to all CPUs of its GPUs' NUMA node that it can be held to,
// or why not.
func (p *Plugin) bind(d *cpuDecision, pod *api.PodSandbox, c *api.Container, nodes numa.Nodes, grants []ledger.Grant, now *device.Snapshot) {
	first, found := now.Device(grants[0].UUID)
	if !found || first.NUMA == nil {
		return // nobody knows where it is
	}
	own, err := p.bindable(pod, nodes[*first.NUMA])
	var devices []string
	for _, g := range grants {
		devices = append(devices, g.UUID)
	}
	var why string
	if other, is := numa.Off(*first.NUMA, devices, now); is {
		why = fmt.Sprintf("GPU %s is of NUMA node %d", other.UUID, *other.NUMA)
	} else if err != nil {
		why = fmt.Sprintf("the CPUs that the pod has under cgroup v1 cannot be read: %v", err)
	} else if nodes[*first.NUMA].IsEmpty() {
		why = "the NUMA node has none"
	} else if own.IsEmpty() {
		why = "the pod has none of them under cgroup v1"
	} else {
		why = d.Refuses(own, p.boundBeside(c.GetId(), *first.NUMA, nodes))
	}
	if why != "" {
		d.unbound = fmt.Sprintf("container %s is not bound to the CPUs of NUMA node %d, which GPU %s is of: %s. It runs on all CPUs of the node", c.GetName(), *first.NUMA, first.UUID, why)
		return
	}
	d.Set, d.bind = own, true
}

// bindable are those of the CPUs that a container of the pod can be held to: the runtime fails
// to create one with others.
func (p *Plugin) bindable(pod *api.PodSandbox, cpus cpuset.CPUSet) (cpuset.CPUSet, error) {
	if p.PodCPUs == nil {
		return cpus, nil
	}
	have, err := p.PodCPUs(pod.GetPid(), pod.GetId())
	return have.Intersection(cpus), err
}

// boundBeside is what all containers but this one request that are held to CPUs of that NUMA
// node.
func (p *Plugin) boundBeside(id string, node int32, nodes numa.Nodes) (others batch.MilliCPU) {
	for _, e := range p.Table.All() {
		if e.ID != id && nodes.Only(node, e.CPUs.Set) {
			others += e.CPUs.Request
		}
	}
	return others
}

// unbind gives a container all CPUs of the node where it asks for more now than there is of the
// NUMA node's that it was bound to: the kubelet counts on those of the whole node. The kubelet
// itself holds a container to just these CPUs under policy static only, where nothing is bound.
func (p *Plugin) unbind(pod *api.PodSandbox, topology v1alpha1.TopologyRequest, c *api.Container, to *numa.CPUs) bool {
	if !p.BindCPUs || !ofOneNUMANode(topology) {
		return false
	}
	nodes := p.nodes()
	var all cpuset.CPUSet
	for _, cpus := range nodes {
		all = all.Union(cpus)
	}
	all, err := p.bindable(pod, all)
	if err != nil {
		p.Log.Error(err, "Cannot see which CPUs a container can have", "containerID", c.GetId())
		return false
	}
	node, one := nodes.Of(to.Set)
	own := nodes[node].Intersection(all)
	if !one || !own.IsSubsetOf(to.Set) {
		return false
	}
	why := to.Refuses(own, p.boundBeside(c.GetId(), node, nodes))
	if why == "" {
		return false
	}
	to.Set = all
	p.Report.Warn(ref(pod).Of(c.GetName()), ReasonUnbound, fmt.Sprintf("container %s was resized, and is no longer bound to the CPUs of NUMA node %d: %s. It runs on all CPUs of the node", c.GetName(), node, why))
	return true
}

// nodes are the CPUs of the node's NUMA nodes, none where they cannot be read: that is no reason to keep
// a container out. An error that lasts is logged once.
func (p *Plugin) nodes() numa.Nodes {
	nodes, err := numa.Read(p.Sysfs)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if last := p.nodesErr.Swap(&text); err != nil && (last == nil || *last != text) {
		p.Log.Error(err, "Cannot compare the CPUs of containers with their GPUs'")
	}
	return nodes
}

// aligner has the status of a container that is held to CPUs say whether these are of its
// devices' NUMA nodes, as they are now.
func (p *Plugin) aligner(container string) attach.Align {
	nodes := p.nodes()
	now, _ := p.Devices.Snapshot()
	return func(status []v1alpha1.SliceStatus, cpus cpuset.CPUSet) {
		for i := range status {
			s := &status[i]
			s.Aligned = nil
			if d, found := now.Device(s.UUID); found && !cpus.IsEmpty() && d.NUMA != nil && !nodes[*d.NUMA].IsEmpty() {
				s.Aligned = ptr.To(nodes.Only(*d.NUMA, cpus))
			}
		}
	}
}

// cpusOf are the CPUs of a container that has these resources. An opportunistic one requests
// none of the others: they go before it, whatever its pod says.
func cpusOf(request *podrequest.Request, r *api.LinuxResources) (numa.CPUs, error) {
	cpus, err := numa.CPUsOf(r)
	if request.QoS == v1alpha1.QoSOpportunistic {
		cpus.Request = 0
	}
	return cpus, err
}

// foundCPUs are the CPUs that a container has; none where the runtime's word for them cannot be
// read, which would be its error.
func (p *Plugin) foundCPUs(request *podrequest.Request, c *api.Container) numa.CPUs {
	cpus, err := cpusOf(request, c.GetLinux().GetResources())
	if err != nil {
		p.Log.Error(err, "Cannot see where a container runs", "containerID", c.GetId())
	}
	return cpus
}

// resized takes note of what the kubelet changes: the CPUs that containers without CPUs of
// their own share, and the amounts of a pod that is resized. r has what is to change. nil where
// nothing is to change beside.
func (p *Plugin) resized(pod *api.PodSandbox, c *api.Container, r *api.LinuxResources) *api.ContainerUpdate {
	entry, entered := p.Table.Get(c.GetId())
	if !entered {
		return nil
	}
	request := podrequest.OfAnnotations(pod.GetAnnotations())
	to, err := cpusOf(request, r)
	if err != nil {
		return nil
	}
	mayBeOurs := to.Set.IsEmpty()
	if mayBeOurs {
		to.Set = entry.CPUs.Set
	}
	to.Request, to.Limit = cmp.Or(to.Request, entry.CPUs.Request), cmp.Or(to.Limit, entry.CPUs.Limit)
	if to.Set.Equals(entry.CPUs.Set) && to.Request == entry.CPUs.Request && to.Limit == entry.CPUs.Limit {
		return nil
	}
	var update *api.ContainerUpdate
	if mayBeOurs && p.unbind(pod, request.Topology, c, &to) {
		update = &api.ContainerUpdate{ContainerId: c.GetId()}
		update.SetLinuxCPUSetCPUs(to.Set.String())
	}
	p.Table.Resized(c.GetId(), to, p.aligner(c.GetId()))
	return update
}
