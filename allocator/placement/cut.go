// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Cut is a device in MIG mode: the instances that it can be cut into, by
// its driver, and those that lie on it. It never changes.
type Cut struct {
	// profiles, the one first that takes the least of the device.
	profiles []v1alpha1.MIGProfile
	// taken is what slices are on, and what of others can't be used.
	taken []v1alpha1.MIGPlace
	// idle are instances of others that no slice is on: to be used as they are, and
	// in the way of any other.
	idle []v1alpha1.MIGPlace
}

// NewCut is a device with those instances, of which slices have been granted at
// those places. An instance that the node agent made and no slice is on goes by
// itself, so it is in nobody's way.
func NewCut(profiles []v1alpha1.MIGProfile, instances []v1alpha1.MIGInstance, granted []v1alpha1.MIGPlace) *Cut {
	c := &Cut{profiles: slices.Clone(profiles), taken: slices.Clone(granted)}
	for _, i := range instances {
		switch {
		case slices.Contains(granted, i.MIGPlace):
		case i.Reason != "":
			c.taken = append(c.taken, i.MIGPlace)
		case i.Own:
		case i.UUID == "":
			c.taken = append(c.taken, i.MIGPlace)
		default:
			c.idle = append(c.idle, i.MIGPlace)
		}
	}
	// Of kinds of one size the plain one, of which there can be most.
	slices.SortFunc(c.profiles, func(a, b v1alpha1.MIGProfile) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Core, b.Core), cmp.Compare(b.Max, a.Max), cmp.Compare(a.ID, b.ID))
	})
	return c
}

// find is where a share of that much goes: on the smallest kind of instance that
// holds it; one that is there already, or else where it leaves the largest instances
// possible.
func (c *Cut) find(need Amount) (v1alpha1.MIGPlace, bool) {
	for i := range c.profiles {
		p := &c.profiles[i]
		if p.Core < need.Core || p.Mem < need.Mem {
			continue
		}
		var best v1alpha1.MIGPlace
		var left []int
		for _, start := range p.Starts {
			place := p.Place(start)
			if slices.Contains(c.idle, place) {
				return place, true
			}
			if !c.free(place) {
				continue
			}
			if after := c.with(place).possible(); left == nil || slices.Compare(after, left) > 0 {
				best, left = place, after
			}
		}
		if left != nil {
			return best, true
		}
	}
	return v1alpha1.MIGPlace{}, false
}

// size is that of the smallest kind of instance that holds so much, 0 without one.
func (c *Cut) size(need Amount) int32 {
	for i := range c.profiles {
		if p := &c.profiles[i]; p.Core >= need.Core && p.Mem >= need.Mem {
			return p.Size
		}
	}
	return 0
}

// free reports whether an instance can be at the place: one that is there already, or
// a new one.
func (c *Cut) free(place v1alpha1.MIGPlace) bool {
	if slices.Contains(c.idle, place) {
		return true
	}
	i := slices.IndexFunc(c.profiles, func(p v1alpha1.MIGProfile) bool { return p.ID == place.Profile && p.Size == place.Size })
	if i < 0 || !slices.Contains(c.profiles[i].Starts, place.Start) {
		return false
	}
	var alike int32
	for _, there := range [][]v1alpha1.MIGPlace{c.taken, c.idle} {
		for _, other := range there {
			if other.Overlaps(place) {
				return false
			}
			if other.Profile == place.Profile {
				alike++
			}
		}
	}
	return alike < c.profiles[i].Max
}

// possible counts, the largest kind first, at how many places there could be one.
func (c *Cut) possible() []int {
	counts := make([]int, len(c.profiles))
	for i := range c.profiles {
		for _, start := range c.profiles[i].Starts {
			if c.free(c.profiles[i].Place(start)) {
				counts[len(counts)-1-i]++
			}
		}
	}
	return counts
}

// with is the device with one more slice on it.
func (c *Cut) with(place v1alpha1.MIGPlace) *Cut {
	return &Cut{
		profiles: c.profiles,
		taken:    append(slices.Clone(c.taken), place),
		idle:     slices.DeleteFunc(slices.Clone(c.idle), func(p v1alpha1.MIGPlace) bool { return p == place }),
	}
}

// Equal reports whether two devices take the same slices at the same places.
func (c *Cut) Equal(d *Cut) bool {
	if c == nil || d == nil {
		return c == d
	}
	same := slices.EqualFunc(c.profiles, d.profiles, func(a, b v1alpha1.MIGProfile) bool {
		return a.ID == b.ID && a.Core == b.Core && a.Mem == b.Mem && a.Size == b.Size && a.Max == b.Max && slices.Equal(a.Starts, b.Starts)
	})
	return same && sameSet(c.taken, d.taken) && sameSet(c.idle, d.idle)
}

func sameSet(a, b []v1alpha1.MIGPlace) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p v1alpha1.MIGPlace) bool { return !slices.Contains(b, p) })
}
