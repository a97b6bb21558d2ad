// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"flag"
	"time"

	"vernier.dev/vernier/allocator/preemption"
)

// reserveAfter is the flag for how long the first waiter waits before room is reserved for it.
type reserveAfter time.Duration

func (r *reserveAfter) String() string { return time.Duration(*r).String() }

func (r *reserveAfter) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return errors.New("give a duration such as 10m, or 0s to keep no room for the first that waits")
	}
	*r = reserveAfter(d)
	return nil
}

// Options are what an operator chooses.
type Options struct {
	// Page is the address of the page; "0" serves none.
	Page string
	// Preemption and ReserveAfter are as in Config.
	Preemption   preemption.Policy
	ReserveAfter time.Duration
}

// AddFlags has flags set them.
func (o *Options) AddFlags(f *flag.FlagSet) {
	o.Preemption, o.ReserveAfter = preemption.LowerPriority, 10*time.Minute
	f.StringVar(&o.Page, "page-bind-address", ":8082", "host:port for the page that shows the fleet, 0 for none")
	f.Var(&o.Preemption, "preemption", "LowerPriority evicts pods with slices for pods of higher priority that find no room; Never evicts none")
	f.Var((*reserveAfter)(&o.ReserveAfter), "reserve-after", "how long the first pod that waits does so before room is kept for it, as a `duration`; 0s keeps none")
}
