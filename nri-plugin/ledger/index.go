// SPDX-License-Identifier: Apache-2.0

// Package ledger owns the node agent's view of its node's SliceLedger: an index
// of the grants, and the one writer of the ledger's status. The index is for
// look-ups on the path of a container's creation.
//
// It never changes the spec: granting is the allocator's.
package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/tide"
)

// Key names a container before the runtime has given it an id.
type Key struct {
	Pod       types.UID
	Container string
}

// Grant is one slice together with the device that it is on.
type Grant struct {
	// UUID of the device.
	UUID string
	// DeviceMem is what the ledger believes the device's memory to be.
	DeviceMem v1alpha1.MiB
	// Core is percent of the device's compute; 0 is no quota.
	Core v1alpha1.Percent
	// Mem is memory on the device.
	Mem v1alpha1.MiB
	// PodCore and PodMem are what the ledger books on the device for all of the
	// pod's containers together. That is less than their sum where some never run at the
	// same time.
	PodCore v1alpha1.Percent
	PodMem  v1alpha1.MiB
	// Asked is what the container asks for of the device; it may have less.
	Asked v1alpha1.Amounts
	// Resize is what the slice is being changed to. Its number is 0 where it isn't.
	Resize v1alpha1.SliceResize
	// MIG is the instance of a slice in mode mig.
	MIG v1alpha1.MIGPlace
	// Mode in which the slice is to be enforced, never empty.
	Mode v1alpha1.Mode
	// Idle is percent of the device's idle compute, of an idle slice; 0 of any other.
	Idle v1alpha1.Percent
}

// Index is one version of the ledger: what its spec grants, and what its status
// said was in use. It never changes.
type Index struct {
	// UID and Generation of the ledger: the same pair has the same grants.
	UID        types.UID
	Generation int64

	// Lent reports whether idle slices have memory that others were promised.
	Lent bool

	grants map[Key][]Grant
	sums   map[string]v1alpha1.Amounts
	mem    map[string]v1alpha1.MiB
	owners map[types.UID]string
	held   map[types.UID]bool
	// leaving are the pods whose idle slices are being taken back.
	leaving map[types.UID]bool
	inUse   []v1alpha1.SliceStatus
	// misaligned are few: nearly always none.
	misaligned []v1alpha1.MisalignedPod
	// Tide is how much idle slices may have, nil for all, and Idle the devices that have such.
	Tide *v1alpha1.LedgerTide
	Idle []tide.Device

	version string
	healthy []string

	cordoned map[string]bool
	shares   map[string][]Share
}

// Share is what a slice adds to what is granted of its device: less the amounts that other
// slices of its pod count already.
type Share struct {
	Namespace string
	v1alpha1.Amounts
	// Since is when it was granted, zero where that is not known.
	Since time.Time
}

// Shares are those of a device, held ones among them. They add up to Granted. The caller must
// not change them.
func (x *Index) Shares(uuid string) []Share { return x.shares[uuid] }

// Cordoned reports whether the device has a cordon.
func (x *Index) Cordoned(uuid string) bool { return x.cordoned[uuid] }

// Sum adds up what is granted, of all devices in the ledger, and what is free of those
// present, healthy and without a cordon.
func (x *Index) Sum(devices []v1alpha1.DeviceStatus, s *v1alpha1.SummaryStatus) {
	var granted, free v1alpha1.Amounts
	for _, a := range x.sums {
		granted.Core, granted.Mem = granted.Core+a.Core, granted.Mem+a.Mem
	}
	for i := range devices {
		d := &devices[i]
		if a := x.sums[d.UUID]; d.Healthy && !x.cordoned[d.UUID] {
			free.Core, free.Mem = free.Core+max(v1alpha1.WholeGPU-a.Core, 0), free.Mem+max(d.Mem-a.Mem, 0)
		}
	}
	s.CoreGranted, s.CoreFree, s.MemGranted, s.MemFree = &granted.Core, &free.Core, &granted.Mem, &free.Mem
}

// NewIndex reads a ledger; nil is an empty one.
func NewIndex(l *v1alpha1.SliceLedger) *Index {
	x := &Index{grants: map[Key][]Grant{}, sums: map[string]v1alpha1.Amounts{}, mem: map[string]v1alpha1.MiB{}, owners: map[types.UID]string{}, held: map[types.UID]bool{}, leaving: map[types.UID]bool{},
		cordoned: map[string]bool{}, shares: map[string][]Share{}}
	if l == nil {
		return x
	}
	x.UID, x.Generation, x.inUse = l.UID, l.Generation, l.Status.Slices
	x.version, x.healthy = l.ResourceVersion, healthyNames(l.Status.Devices)
	x.misaligned = l.Status.Misaligned
	x.Tide, x.Idle = l.Spec.Tide, tide.Idle(&l.Spec)
	for _, c := range l.Spec.Cordons {
		x.cordoned[c.UUID] = true
	}
	for i := range l.Spec.Holds {
		for _, pod := range l.Spec.Holds[i].Pods {
			x.held[pod] = true
		}
	}
	for i := range l.Spec.Devices {
		d := &l.Spec.Devices[i]
		x.mem[d.UUID], x.Lent = d.Mem, x.Lent || d.Lent > 0
		booked := map[types.UID]Grant{}
		shares := make([]Share, len(d.Slices))
		for j := range d.Slices {
			s := &d.Slices[j]
			b := booked[s.Pod]
			b.PodCore, b.PodMem = b.PodCore+s.Core-s.ReuseCore, b.PodMem+s.Mem-s.ReuseMem
			booked[s.Pod] = b
			adds := v1alpha1.Amounts{Core: s.Core - s.ReuseCore, Mem: s.Mem - s.ReuseMem}
			sum := x.sums[d.UUID]
			x.sums[d.UUID] = v1alpha1.Amounts{Core: sum.Core + adds.Core, Mem: sum.Mem + adds.Mem}
			shares[j].Amounts = adds
			shares[j].Namespace, _, _ = strings.Cut(s.Owner, "/")
			if s.Since != nil {
				shares[j].Since = s.Since.Time
			}
		}
		x.shares[d.UUID] = shares
		for j := range d.Slices {
			s := &d.Slices[j]
			key := Key{Pod: s.Pod, Container: s.Ctr}
			g := Grant{
				UUID: d.UUID, DeviceMem: d.Mem, Core: s.Core, Mem: s.Mem, Mode: s.EffectiveMode(),
				PodCore: booked[s.Pod].PodCore, PodMem: booked[s.Pod].PodMem, Asked: s.Of(), Idle: s.Idle,
			}
			if s.Resize != nil {
				g.Resize = *s.Resize
			}
			if s.MIG != nil {
				g.MIG = *s.MIG
			}
			x.grants[key] = append(x.grants[key], g)
			x.owners[s.Pod] = s.Owner
			if s.Leaving {
				x.leaving[s.Pod] = true
			}
		}
	}
	return x
}

// Grants of a container, held ones among them, in the ledger's order of devices; nil
// when it has none. The caller must not change them.
func (x *Index) Grants(k Key) []Grant { return x.grants[k] }

// Initial are the slices with what a container begins with. While they are being changed that is
// the smaller of before and after. An earlier run may have reported either of them as in force.
func Initial(grants []Grant) []Grant {
	if ResizeOf(grants) == 0 {
		return grants
	}
	initial := slices.Clone(grants)
	for i := range initial {
		if g := &initial[i]; g.Resize.Number != 0 {
			g.Core, g.Mem = min(g.Resize.Core, g.Resize.From.Core), min(g.Resize.Mem, g.Resize.From.Mem)
		}
	}
	return initial
}

// ResizeOf is the number of the resize of a container's slices, 0 without one.
func ResizeOf(grants []Grant) (number int64) {
	for i := range grants {
		number = max(number, grants[i].Resize.Number)
	}
	return number
}

// Devices are the UUIDs of the devices on which the pod holds slices, sorted.
func (x *Index) Devices(pod types.UID) []string {
	var all []string
	for key, grants := range x.grants {
		if key.Pod != pod {
			continue
		}
		for _, g := range grants {
			all = append(all, g.UUID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Granted is all that is granted of a device. An amount that a slice reuses of its pod's other
// slices counts once, as in the ledger's rules.
func (x *Index) Granted(uuid string) v1alpha1.Amounts { return x.sums[uuid] }

// Mem is what the ledger believes the device's memory to be, 0 where it has no such device.
func (x *Index) Mem(uuid string) v1alpha1.MiB { return x.mem[uuid] }

// Held reports whether the pod's slices are held for its gang and not granted yet. They
// may be prepared, and no container may have them: they can be taken back at any
// time, without a word from this node.
func (x *Index) Held(pod types.UID) bool { return x.held[pod] }

// Leaving reports whether the pod's idle slice is being taken back: its container is to end now, and
// no other to start.
func (x *Index) Leaving(pod types.UID) bool { return x.leaving[pod] }

// Misaligned is the NUMA node to which the allocator may move the pod's slices at any time,
// because the status said so.
func (x *Index) Misaligned(pod types.UID) (node int32, is bool) {
	for _, m := range x.misaligned {
		if m.Pod == pod {
			return m.NUMA, true
		}
	}
	return 0, false
}

// Healthy reports whether the status said that what the grant is on is there and healthy.
// The allocator moves slices only off what is not.
func (x *Index) Healthy(g Grant) bool {
	return slices.Contains(x.healthy, g.UUID) && (g.Mode != v1alpha1.ModeMIG || !slices.Contains(x.healthy, unhealthyInstance(g.UUID, g.MIG)))
}

// healthyNames are the healthy devices, and with them their instances that are not.
func healthyNames(devices []v1alpha1.DeviceStatus) (names []string) {
	for i := range devices {
		d := &devices[i]
		if !d.Healthy {
			continue
		}
		names = append(names, d.UUID)
		for j := range d.Instances {
			if d.Instances[j].Reason != "" {
				names = append(names, unhealthyInstance(d.UUID, d.Instances[j].MIGPlace))
			}
		}
	}
	return names
}

func unhealthyInstance(uuid string, place v1alpha1.MIGPlace) string {
	return fmt.Sprint(uuid, " not ", place)
}

// InUse is what the status said of containers; it may be of before a restart. The
// caller must not change it.
func (x *Index) InUse() []v1alpha1.SliceStatus { return x.inUse }

// Owner is namespace/name of a pod that holds slices.
func (x *Index) Owner(pod types.UID) (owner string, holds bool) {
	owner, holds = x.owners[pod]
	return owner, holds
}

// Pods are the UIDs of all pods that hold slices, in no order.
func (x *Index) Pods() []types.UID {
	return slices.Collect(maps.Keys(x.owners))
}

// Each calls f for every container that holds slices, in no order.
func (x *Index) Each(f func(Key, []Grant)) {
	for key, grants := range x.grants {
		f(key, grants)
	}
}

// Cache holds the index of the latest ledger that the watch has delivered.
type Cache struct {
	// Node is the node's name, which is the ledger's as well.
	Node string
	// Live reads from the API server, past every cache.
	Live client.Reader

	index atomic.Pointer[Index]
	// least is the version in which the agent last said something else of what is healthy or
	// misaligned, or a newer one that was read; nil while that is being written, or not known.
	least atomic.Pointer[string]
}

// doubt has the watch be behind until the status was written.
func (c *Cache) doubt() { c.least.Store(nil) }

// settle ends the doubt: the status was written in that version, or was so already.
func (c *Cache) settle(version string) { c.least.CompareAndSwap(nil, &version) }

// Behind reports whether the watch may not have delivered yet the state of slices on
// an unhealthy device, or of a misaligned pod. The allocator moves them until the
// ledger says that it is not.
func (c *Cache) Behind() bool {
	least := c.least.Load()
	if least == nil {
		return true
	}
	older, err := resourceversion.CompareResourceVersion(c.Index().version, *least)
	return err != nil || older < 0
}

// Set takes a ledger that the watch delivered, nil when it has been deleted, and
// returns the index of before and of now.
func (c *Cache) Set(l *v1alpha1.SliceLedger) (before, now *Index) {
	now = NewIndex(l)
	before = c.index.Swap(now)
	if before == nil {
		before = NewIndex(nil)
	}
	return before, now
}

// Begin takes the ledger as the agent finds it, unless the watch has delivered one
// already: that one is as new at least.
func (c *Cache) Begin(l *v1alpha1.SliceLedger) { c.index.CompareAndSwap(nil, NewIndex(l)) }

// Known reports whether the watch has delivered the ledger, or its end.
func (c *Cache) Known() bool { return c.index.Load() != nil }

// Index is the latest one, empty before the first.
func (c *Cache) Index() *Index {
	if x := c.index.Load(); x != nil {
		return x
	}
	return NewIndex(nil)
}

// Fetch reads the ledger from the API server: for a container that the watch has
// not delivered yet. ctx must bound it.
func (c *Cache) Fetch(ctx context.Context) (*Index, error) {
	l := &v1alpha1.SliceLedger{}
	if err := c.Live.Get(ctx, client.ObjectKey{Name: c.Node}, l); err != nil {
		return nil, fmt.Errorf("reading SliceLedger %s: %w", c.Node, err)
	}
	// What was acted on may not be forgotten: the allocator goes on from there.
	if least := c.least.Load(); least != nil {
		if newer, err := resourceversion.CompareResourceVersion(l.ResourceVersion, *least); err == nil && newer > 0 {
			c.least.CompareAndSwap(least, &l.ResourceVersion)
		}
	}
	return NewIndex(l), nil
}
