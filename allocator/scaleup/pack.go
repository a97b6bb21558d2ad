// SPDX-License-Identifier: Apache-2.0

package scaleup

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// maxExcluded bounds the names of nodes in a buffer.
	maxExcluded = 1000
	// maxKinds bounds how many kinds of pods are looked at: each takes a look at all nodes.
	maxKinds = 500
)

// buffer is a CapacityBuffer with its PodTemplate.
type buffer struct {
	Name     string
	Replicas int
	Pod      corev1.PodSpec
}

// class is pods that may go to the same new nodes, with as many devices each. One buffer asks for them.
type class struct {
	name    string
	where   corev1.PodSpec
	devices int
	// empty is a node before anything is placed there, rooms are the nodes with pods of the class.
	empty *placement.Node
	rooms []*placement.Node
	// full are the nodes that are not to be counted on: as sums they have room, as devices not.
	full []string
	// admits reports of a node that the pods may go there.
	admits      func(node string) bool
	cpu, memory resource.Quantity
}

// chunks is how many replicas the class has, each of as many whole devices as a pod of it has.
func (c *class) chunks() int {
	used := 0
	for _, room := range c.rooms {
		for i := range room.Devices {
			if d := &room.Devices[i]; d.FreeCore < v1alpha1.WholeGPU || d.FreeMem < d.Mem {
				used++
			}
		}
	}
	return (used + c.devices - 1) / c.devices
}

// pack is what the sets ask for beyond the room on fresh nodes, the first ones first. A set that would exceed the
// bound on devices is left out.
func (k *Keeper) pack(sets [][]scheduling.Request, fresh, full []*placement.Node) []buffer {
	known, kinds := map[string]*class{}, map[string]*class{}
	for _, set := range sets {
		next, left := maps.Clone(known), slices.Clone(fresh)
		slices.SortStableFunc(set, func(p, q scheduling.Request) int { return cmp.Compare(q.Demand.Least(), p.Demand.Least()) })
		if slices.ContainsFunc(set, func(r scheduling.Request) bool {
			kind := podrequest.EquivalenceClass(r.Pod) + fmt.Sprint(r.Pod.Spec.NodeSelector, r.Pod.Spec.Affinity.String(), r.Pod.Spec.Tolerations)
			if _, is := kinds[kind]; !is && len(kinds) < maxKinds {
				kinds[kind] = k.classOf(r, full)
			}
			return !kinds[kind].place(r, left) && !add(next, kinds[kind], r)
		}) {
			continue
		}
		asked := 0
		for _, c := range next {
			asked += c.chunks() * c.devices
		}
		if asked <= k.MaxGPUs {
			known, fresh = next, left
		}
	}
	var all []buffer
	for _, name := range slices.Sorted(maps.Keys(known)) {
		all = append(all, known[name].buffer())
	}
	return all
}

// place has the pod take room on a node that is there, if one has it.
func (c *class) place(r scheduling.Request, rooms []*placement.Node) bool {
	for i, room := range rooms {
		if c == nil || !c.admits(room.Name) {
			continue
		}
		if plan, fits := placement.Fit(r.Demand, room); fits {
			rooms[i] = room.Without(&plan)
			return true
		}
	}
	return false
}

// add packs a pod of a class, on the first node on which it fits. It is false for one that fits on no node.
func add(known map[string]*class, of *class, r scheduling.Request) bool {
	if of == nil {
		return false
	}
	// What is tried for a set leaves the others as they are.
	empty, copied := of.empty, *of
	if was := known[of.name]; was != nil {
		copied = *was
	}
	c := &copied
	c.rooms, c.cpu, c.memory = slices.Clone(c.rooms), c.cpu.DeepCopy(), c.memory.DeepCopy()
	known[c.name] = c
	host := podresource.PodRequests(r.Pod, podresource.PodResourcesOptions{})
	c.cpu.Add(host[corev1.ResourceCPU])
	c.memory.Add(host[corev1.ResourceMemory])
	for i, room := range c.rooms {
		if plan, fits := placement.Fit(r.Demand, room); fits {
			c.rooms[i] = room.Without(&plan)
			return true
		}
	}
	plan, fits := placement.Fit(r.Demand, empty)
	if fits {
		c.rooms = append(c.rooms, empty.Without(&plan))
	}
	return fits
}

// classOf is the class of a pod, without pods; nil where no node would do.
func (k *Keeper) classOf(r scheduling.Request, full []*placement.Node) *class {
	empty, models := k.shape(r)
	if empty == nil {
		return nil
	}
	plan, fits := placement.Fit(r.Demand, empty)
	if !fits {
		return nil
	}
	devices := map[string]bool{}
	for _, g := range plan.Grants {
		devices[g.UUID] = true
	}
	c := &class{empty: empty, devices: len(devices), where: corev1.PodSpec{NodeSelector: r.Pod.Spec.NodeSelector, Tolerations: r.Pod.Spec.Tolerations}}
	required := &corev1.NodeSelector{}
	if a := r.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.DeepCopy()
	}
	if len(models) > 0 {
		restrict(required, corev1.NodeSelectorRequirement{Key: v1alpha1.LabelGPUModel, Operator: corev1.NodeSelectorOpIn, Values: models})
	}
	key, _ := json.Marshal([]any{c.where, required, c.devices}) // which never fails: it was JSON
	sum := sha256.Sum256(key)
	c.name = "vernier-" + hex.EncodeToString(sum[:5])
	starts := *r.Pod
	starts.Spec.Tolerations = append(slices.Clip(starts.Spec.Tolerations), corev1.Toleration{Key: v1alpha1.TaintAgentNotReady, Operator: corev1.TolerationOpExists})
	c.admits = k.Filters.Admits([]*corev1.Pod{&starts})
	for _, room := range full {
		free := v1alpha1.Percent(0)
		for i := range room.Devices {
			free += room.Devices[i].FreeCore
		}
		node := k.Node(room.Name)
		if node == nil || node.Labels[corev1.LabelHostname] == "" || free < v1alpha1.Percent(c.devices)*v1alpha1.WholeGPU || len(c.full) == maxExcluded || !c.admits(room.Name) {
			continue
		}
		c.full = append(c.full, node.Labels[corev1.LabelHostname])
	}
	if len(c.full) > 0 {
		restrict(required, corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: c.full})
	}
	if len(required.NodeSelectorTerms) > 0 {
		c.where.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
	return c
}

// restrict adds a requirement to each term.
func restrict(s *corev1.NodeSelector, r corev1.NodeSelectorRequirement) {
	if len(s.NodeSelectorTerms) == 0 {
		s.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
	}
	for i := range s.NodeSelectorTerms {
		s.NodeSelectorTerms[i].MatchExpressions = append(s.NodeSelectorTerms[i].MatchExpressions, r)
	}
}

// shape is a new node for the pod before anything is placed there: like the first that it may go to, else like any.
// Where there is none its devices have all memory. models are the labels of the models that the pod may use, empty for
// any. It is nil where there are nodes for the pod, and it would fit on none of them if they were empty.
func (k *Keeper) shape(r scheduling.Request) (empty *placement.Node, models []string) {
	admits, admitted := k.Filters.Admits([]*corev1.Pod{r.Pod}), false
	var other *placement.Node
	for _, name := range k.Cache.Index.Names() {
		ledger := k.Cache.Index.Ledger(name)
		if ledger == nil || len(ledger.Status.Devices) == 0 {
			continue
		}
		bare := index.Bare(ledger)
		_, fits := placement.Fit(r.Demand, bare)
		if admits(name) {
			admitted = true
			if fits && empty == nil {
				empty = bare
			}
		}
		if fits && other == nil {
			other = bare
		}
		if node := k.Node(name); fits && node != nil && node.Labels[v1alpha1.LabelGPUModel] != "" {
			models = append(models, node.Labels[v1alpha1.LabelGPUModel])
		}
	}
	if !picky(r.Demand) {
		models = nil
	}
	slices.Sort(models)
	models = slices.Compact(models)
	switch {
	case admitted:
		return empty, models
	case other != nil:
		return other, models
	case picky(r.Demand):
		return nil, nil
	}
	return unknown, nil
}

// picky reports whether the pod may use devices of some models only.
func picky(d *placement.Demand) bool {
	return d.Models.Any() || slices.ContainsFunc(d.Containers, func(c placement.Container) bool { return c.Models.Any() })
}

// unknown is a node of which only the number of devices is assumed.
var unknown = func() *placement.Node {
	n := &placement.Node{}
	for i := range int32(8) {
		n.Devices = append(n.Devices, placement.Device{UUID: fmt.Sprint(i), Index: i, Mem: math.MaxInt32, FreeCore: v1alpha1.WholeGPU, FreeMem: math.MaxInt32, Slots: math.MaxInt32})
	}
	return n
}()

// buffer asks for the devices of the class, with the processors and memory of its pods.
func (c *class) buffer() buffer {
	b := buffer{Name: c.name, Replicas: c.chunks(), Pod: c.where}
	part := func(q resource.Quantity) resource.Quantity {
		n := int64(b.Replicas)
		return *resource.NewMilliQuantity((q.MilliValue()+n-1)/n, q.Format)
	}
	whole := *resource.NewQuantity(int64(c.devices)*int64(v1alpha1.WholeGPU), resource.DecimalSI)
	memory := c.memory.Value()
	requests := corev1.ResourceList{v1alpha1.ResourceCore: whole, v1alpha1.ResourceMemPercent: whole}
	if !c.cpu.IsZero() {
		requests[corev1.ResourceCPU] = part(c.cpu)
	}
	if n := int64(b.Replicas); memory > 0 {
		requests[corev1.ResourceMemory] = *resource.NewQuantity((memory+n-1)/n, resource.BinarySI)
	}
	b.Pod.Containers = []corev1.Container{{Name: "devices", Image: "none", Resources: corev1.ResourceRequirements{Requests: requests, Limits: corev1.ResourceList{
		v1alpha1.ResourceCore: whole, v1alpha1.ResourceMemPercent: whole,
	}}}}
	return b
}
