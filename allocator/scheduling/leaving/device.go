// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// device is one of the node, of which some slices leave.
type device struct {
	uuid string
	// now is the device as it is, nil while it takes nothing, with so many slices; most is when all
	// are gone that may leave, which have ends of it.
	now    *placement.Device
	most   placement.Device
	slices int
	ends   placement.Amount
	// gone is what those have of it that leave, free what is free then.
	gone, free placement.Amount
	needs      []need
	// rank is by what has to leave it alone.
	rank int
}

// need is what one container cannot do without on a device, or all on the same. may is false
// where it can never be there; now: it may while others are there.
type need struct {
	placement.Amount
	may, now bool
}

// give has so much of the device be gone. What is free then, as far as amounts tell, is never less
// than the room.
func (d *device) give(gone placement.Amount) {
	d.gone = gone
	switch {
	case gone.Slots == 0 && d.now == nil:
		d.free = placement.Amount{}
	case gone.Slots == 0:
		d.free = d.now.Free()
	case d.empty():
		d.free = d.most.Free()
	default:
		// Where some is reserved the first slices to go may give no room, and the last ones do.
		most := d.most.Free()
		d.free = most.Minus(d.ends).Plus(gone).Most(placement.Amount{}).Least(d.now.Free().Plus(gone)).Least(most)
	}
}

// empty reports whether all slices of the device are gone, or some of one that takes nothing: it
// may take anything then.
func (d *device) empty() bool {
	return d.gone.Slots > 0 && (d.now == nil || d.gone.Slots >= d.slices)
}

// has reports whether by amounts the device has the need at i.
func (d *device) has(i int) bool {
	n := &d.needs[i]
	return n.may && (n.now || d.empty()) && n.Fits(d.free)
}

// sizeOf is how much of what is lacking an amount is: the sum over its sides, 1 each at most.
func sizeOf(a, lack placement.Amount) float64 {
	return fraction(a.Core, lack.Core) + fraction(a.Mem, lack.Mem) + fraction(a.Slots, lack.Slots)
}

func fraction[T v1alpha1.Percent | v1alpha1.MiB | int](a, lack T) float64 {
	if lack <= 0 {
		return 0
	}
	return min(1, float64(a)/float64(lack))
}
