// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// holding is what one pod holds of one device.
type holding struct {
	owner      string
	containers []string
	core       v1alpha1.Percent
	mem        v1alpha1.MiB
}

// room reports whether every device has room for the container beside those that
// are entered. The ledger promises it; this holds although the ledger may have
// been changed, or been old, when one of them was created. t.mu is held.
func (t *ContainerTable) room(e Entry) error {
	for _, want := range e.Grants {
		if err := t.apart(e, want); err != nil {
			return err
		}
		if t.ample(e, want) {
			continue
		}
		var core v1alpha1.Percent
		var mem v1alpha1.MiB
		holdings := t.holdings(e, want)
		for _, h := range holdings {
			core, mem = core+h.core, mem+h.mem
		}
		if core <= v1alpha1.WholeGPU && mem <= want.DeviceMem {
			continue
		}
		delete(holdings, e.Pod)
		return fmt.Errorf("device %s has no room for its %d %% of compute and %d MiB: of %d %% and %d MiB, %s. It is tried again as they end. If it stays, delete the pod so that it is placed again",
			want.UUID, want.Core, want.Mem, v1alpha1.WholeGPU, want.DeviceMem, describe(holdings))
	}
	return nil
}

// apart reports whether nobody else has an instance of MIG that the slice's would lie
// on, and everybody or nobody on the device is served by MPS. A container that is
// started again may find its predecessor's.
func (t *ContainerTable) apart(e Entry, want ledger.Grant) error {
	for id, other := range t.entries {
		if id == e.ID || other.Key() == e.Key() {
			continue
		}
		for _, g := range other.Grants {
			if g.UUID == want.UUID && (g.Mode == v1alpha1.ModeMPS) != (want.Mode == v1alpha1.ModeMPS) {
				return fmt.Errorf("container %s of pod %s is on device %s in mode %s, which a slice in mode %s can't be beside. It is tried again as it ends. If it stays, delete the pod so that it is placed again",
					other.Name, other.Owner, g.UUID, g.Mode, want.Mode)
			}
			if g.UUID == want.UUID && g.MIG.Overlaps(want.MIG) {
				return fmt.Errorf("container %s of pod %s has the MIG instance at %d on device %s. It is tried again as it ends. If it stays, delete the pod so that it is placed again",
					other.Name, other.Owner, g.MIG.Start, g.UUID)
			}
		}
	}
	return nil
}

// ample is the quick answer, which is nearly always enough: there is room even if
// every entry counts in full. The whole node waits while a container is created.
func (t *ContainerTable) ample(e Entry, device ledger.Grant) bool {
	var core v1alpha1.Percent
	var mem v1alpha1.MiB
	add := func(e Entry) {
		for _, g := range e.Grants {
			if g.UUID == device.UUID {
				g = e.counts(g, device)
				core, mem = core+g.Core, mem+g.Mem
			}
		}
	}
	for id, other := range t.entries {
		if id != e.ID {
			add(other)
		}
	}
	add(e)
	return core <= v1alpha1.WholeGPU && mem <= device.DeviceMem
}

// counts is what the slice keeps from others: all of the device where it leaves nothing, and nothing of
// what is lent.
func (e Entry) counts(g, device ledger.Grant) ledger.Grant {
	g = inFull(g, device)
	if ready, lent := e.Ready[g.UUID]; lent {
		g.Mem = min(g.Mem, ready)
	}
	return g
}

// inFull is all of the device where the slice leaves nothing to others.
func inFull(g, device ledger.Grant) ledger.Grant {
	if g.Mode == v1alpha1.ModeExclusive {
		g.Core, g.Mem = v1alpha1.WholeGPU, device.DeviceMem
	}
	return g
}

// holdings are what the pods would hold of a device with the container entered.
func (t *ContainerTable) holdings(e Entry, device ledger.Grant) map[types.UID]holding {
	// A container that is started again counts once: the end of its predecessor
	// may not have been reported yet.
	held := map[ledger.Key]ledger.Grant{}
	owners := map[types.UID]string{}
	add := func(e Entry) {
		for _, g := range e.Grants {
			if g.UUID != device.UUID {
				continue
			}
			g = e.counts(g, device)
			key := ledger.Key{Pod: e.Pod, Container: e.Name}
			h := held[key]
			held[key] = ledger.Grant{
				Core: max(h.Core, g.Core), Mem: max(h.Mem, g.Mem),
				PodCore: max(h.PodCore, g.PodCore), PodMem: max(h.PodMem, g.PodMem),
			}
			owners[e.Pod] = e.Owner
		}
	}
	for id, other := range t.entries {
		if id != e.ID {
			add(other)
		}
	}
	add(e)

	pods := map[types.UID]holding{}
	most := map[types.UID]ledger.Grant{}
	for key, g := range held {
		h, m := pods[key.Pod], most[key.Pod]
		h.owner, h.containers = owners[key.Pod], append(h.containers, key.Container)
		h.core, h.mem = h.core+g.Core, h.mem+g.Mem
		pods[key.Pod] = h
		// Never less than the largest of them, whatever the ledger calls reused.
		m.PodCore, m.PodMem = max(m.PodCore, g.PodCore, g.Core), max(m.PodMem, g.PodMem, g.Mem)
		most[key.Pod] = m
	}
	// A pod holds at most what the ledger books for it: an init container whose
	// end has not been reported yet does not run beside those that reuse its part.
	for pod, h := range pods {
		h.core, h.mem = min(h.core, most[pod].PodCore), min(h.mem, most[pod].PodMem)
		pods[pod] = h
	}
	return pods
}

// describe says who holds how much, in a stable order.
func describe(holdings map[types.UID]holding) string {
	var parts []string
	for _, h := range slices.SortedFunc(maps.Values(holdings), func(x, y holding) int { return cmp.Compare(x.owner, y.owner) }) {
		slices.Sort(h.containers)
		parts = append(parts, fmt.Sprintf("pod %s (%s) holds %d %% and %d MiB", h.owner, strings.Join(h.containers, ", "), h.core, h.mem))
	}
	if len(parts) == 0 {
		return "the pod's other containers hold the rest"
	}
	return strings.Join(parts, ", ")
}
