// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	podpriority "vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/v1alpha1"
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

// idleAfter is the flag for how long something is so before anything follows from it.
type idleAfter time.Duration

func (i *idleAfter) String() string { return time.Duration(*i).String() }

func (i *idleAfter) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return errors.New("give a duration such as 30m, or 0s for never")
	}
	*i = idleAfter(d)
	return nil
}

// overcommitCore is the flag for how much compute is promised on nodes, the first that selects a node.
type overcommitCore []overcommitted

type overcommitted struct {
	selector labels.Selector
	core     v1alpha1.Percent
}

func (o *overcommitCore) String() string {
	var all []string
	for _, on := range *o {
		all = append(all, fmt.Sprintf("%s:%d", on.selector, on.core))
	}
	return strings.Join(all, " ")
}

func (o *overcommitCore) Set(text string) error {
	at := strings.LastIndex(text, ":")
	selector, err := labels.Parse(text[:max(at, 0)])
	core, notNumber := strconv.Atoi(text[at+1:])
	if at < 0 || err != nil || notNumber != nil || core <= 100 || core > 1000 {
		return errors.New("give a label selector of nodes and 101 to 1000 percent, such as pool=inference:150")
	}
	*o = append(*o, overcommitted{selector, v1alpha1.Percent(core)})
	return nil
}

// of is that of a node with these labels, 0 where its compute is not over-committed.
func (o overcommitCore) of(node map[string]string) v1alpha1.Percent {
	for _, on := range o {
		if on.selector.Matches(labels.Set(node)) {
			return on.core
		}
	}
	return 0
}

// classNames is the flag for the names of PriorityClasses.
type classNames []string

func (c *classNames) String() string { return strings.Join(*c, ",") }

func (c *classNames) Set(text string) error {
	*c = nil
	for name := range strings.SplitSeq(text, ",") {
		if wrong := validation.IsDNS1123Subdomain(name); name != podpriority.Any && len(wrong) > 0 {
			return fmt.Errorf("%q is no name of a PriorityClass: give names with commas between them, or %s for all", name, podpriority.Any)
		}
		*c = append(*c, name)
	}
	return nil
}

// lookahead is the flag for how far ahead room is planned.
type lookahead time.Duration

func (l *lookahead) String() string { return time.Duration(*l).String() }

func (l *lookahead) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Minute {
		return errors.New("give a duration such as 1h, a minute or more")
	}
	*l = lookahead(d)
	return nil
}

// maxGPUs is the flag for how many devices node autoscalers are asked for.
type maxGPUs int

func (m *maxGPUs) String() string { return strconv.Itoa(int(*m)) }

func (m *maxGPUs) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 100_000 {
		return errors.New("give a number of GPUs up to 100000, or 0 to ask for none")
	}
	*m = maxGPUs(n)
	return nil
}

// Options are what an operator chooses.
type Options struct {
	// Page is the address of the page; "0" serves none.
	Page string
	// Preemption, PriorityClasses, ReserveAfter, Lookahead and IdleAfter are as in Config.
	Preemption      preemption.Policy
	PriorityClasses classNames
	ReserveAfter    time.Duration
	Lookahead       time.Duration
	IdleAfter       time.Duration
	Defragment      preemption.Defragment
	OvercommitCore  overcommitCore
	// MaxGPUs bounds the devices that node autoscalers are asked for; 0 asks for none.
	MaxGPUs maxGPUs
}

// AddFlags has flags set them.
func (o *Options) AddFlags(f *flag.FlagSet) {
	o.Preemption, o.ReserveAfter, o.Lookahead, o.IdleAfter = preemption.LowerPriority, 10*time.Minute, backfill.Lookahead, 30*time.Minute
	o.Defragment = preemption.Defragment{MaxPods: 3, PerHour: 6}
	f.StringVar(&o.Page, "page-bind-address", ":8082", "host:port for the page that shows the fleet, 0 for none")
	f.Var(&o.Preemption, "preemption", "LowerPriority evicts pods with slices for pods of higher priority that find no room; Never evicts none")
	f.Var(&o.PriorityClasses, "priority-classes", "`names` of the PriorityClasses that count against pods of other namespaces, with commas between them, or * for all. A namespace is allowed more by its labels "+v1alpha1.LabelPriorityClassPrefix+"NAME="+v1alpha1.LabelPriorityClassEnabled)
	f.Var((*reserveAfter)(&o.ReserveAfter), "reserve-after", "how long the first pod that waits does so before room is kept for it, as a `duration`; 0s keeps none")
	f.Var((*lookahead)(&o.Lookahead), "lookahead", "how far ahead room is planned, as a `duration` of a minute or more. A pod that ends or leaves later counts as staying, and a pod that is evicted has so long to end")
	f.Var((*idleAfter)(&o.Defragment.After), "defragment-after", "how long a pod waits before pods with the label "+v1alpha1.LabelMovable+"="+v1alpha1.LabelMovableTrue+" are moved for it, as a `duration`; 0s moves none")
	f.Var(&o.OvercommitCore, "overcommit-core", "`selector:percent` of the nodes' labels: how much of the compute of each of their GPUs is promised to burstable containers at most. It may be repeated; the first that selects a node counts")
	f.Var(&o.MaxGPUs, "scale-up-max-gpus", "how many `GPUs` node autoscalers are asked for at most, by CapacityBuffers, for pods that find no room; 0 asks for none")
	f.IntVar(&o.Defragment.MaxPods, "defragment-max-pods", o.Defragment.MaxPods, "how many pods are moved for one at most")
	f.IntVar(&o.Defragment.PerHour, "defragment-per-hour", o.Defragment.PerHour, "how many pods are moved in an hour at most")
	f.Var((*idleAfter)(&o.IdleAfter), "idle-after", "how long a pod does no work on its GPUs before its condition "+string(v1alpha1.PodConditionGPUIdle)+" says so, as a `duration`; 0s never says it")
}
