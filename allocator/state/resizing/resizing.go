// SPDX-License-Identifier: Apache-2.0

// Package resizing owns the steps by which the slices of a running pod get other amounts. Every
// function is pure: a pod and a ledger in, a new ledger out.
//
// From the first step on a slice counts with the larger of before and after. The node agent puts
// the new amounts in force, and reports that by the resize's number. Only then the slice counts
// with these alone. So what is in force never exceeds what is counted, whatever is interleaved or lost.
package resizing

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasons of the condition, in the kubelet's words.
const (
	ReasonDeferred   = "Deferred"
	ReasonInfeasible = "Infeasible"
	ReasonInProgress = "InProgress"
	ReasonDone       = "Resized"
)

// Concerns reports whether the pod asks for a resize, or has asked for one.
func Concerns(pod *corev1.Pod) bool {
	to, err := podrequest.ResizeOf(pod)
	return len(to) > 0 || err != nil || ConditionOf(pod) != nil
}

// Pending are the pods of which slices are being resized.
func Pending(ledger *v1alpha1.SliceLedger) map[types.UID]bool {
	var pods map[types.UID]bool
	for i := range ledger.Spec.Devices {
		for _, s := range ledger.Spec.Devices[i].Slices {
			if s.Resize != nil {
				if pods == nil {
					pods = map[types.UID]bool{}
				}
				pods[s.Pod] = true
			}
		}
	}
	return pods
}

// ConditionOf is the pod's condition of its resize, nil without one.
func ConditionOf(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1alpha1.PodConditionResize {
			return c
		}
	}
	return nil
}

// Next is the next step of a resize. A nil Ledger writes nothing. An empty Reason leaves the
// condition as it is.
type Next struct {
	Ledger          *v1alpha1.SliceLedger
	Reason, Message string
}

// Step is the next step for a pod on the ledger's node.
func Step(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) Next {
	to, err := podrequest.ResizeOf(pod)
	text := to.String()
	if Pending(ledger)[pod.UID] {
		return finish(pod, ledger, to)
	}
	is := ConditionOf(pod)
	switch {
	case err != nil:
		return Next{nil, ReasonInfeasible, err.Error()}
	case to == nil && (is == nil || is.Reason == ReasonDone):
		return Next{}
	case to == nil:
		return Next{nil, ReasonDone, "no resize is asked for any more"}
	case is != nil && is.Reason == ReasonInfeasible && strings.HasPrefix(is.Message, text+": "):
		return Next{} // until something else is asked for
	}
	switch next, err := begin(pod, ledger, to); {
	case errors.Is(err, errDeferred):
		return Next{nil, ReasonDeferred, text + ": " + err.Error()}
	case err != nil:
		return Next{nil, ReasonInfeasible, text + ": " + err.Error()}
	case next == nil:
		return Next{nil, ReasonDone, text}
	default:
		return Next{next, ReasonInProgress, text}
	}
}

// slice is one of a pod's, on its device.
type slice struct {
	*v1alpha1.Slice
	device *v1alpha1.DeviceLedger
}

func slicesOf(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (all []slice) {
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		for j := range d.Slices {
			if d.Slices[j].Pod == pod.UID {
				all = append(all, slice{&d.Slices[j], d})
			}
		}
	}
	return all
}

// errDeferred is wrapped where the resize may begin later.
var errDeferred = errors.New("it begins when that has changed")

// begin is the ledger in which the slices count with the larger of before and after, nil where
// they have these amounts.
func begin(pod *corev1.Pod, ledger *v1alpha1.SliceLedger, to v1alpha1.Resize) (*v1alpha1.SliceLedger, error) {
	if err := to.Known(podrequest.SharesOf(pod)); err != nil {
		return nil, err
	}
	next, changes := ledger.DeepCopy(), false
	// No two writes of a spec are over the same generation, so no number comes twice. A ledger that
	// was deleted begins at one again, and its agent still reports greater numbers.
	number := ledger.Generation + 1
	for _, s := range ledger.Status.Slices {
		number = max(number, s.Resized+1)
	}
	for _, s := range slicesOf(pod, next) {
		want, asks := to[s.Ctr]
		if !asks {
			continue
		}
		is := v1alpha1.Amounts{Core: s.Core, Mem: s.Mem}
		target, asked := want.Of(is), s.Of()
		switch {
		case s.EffectiveMode() != v1alpha1.ModeLimiter:
			return nil, fmt.Errorf("container %s is in mode %s, which can't change what runs: create the pod again with annotation %s: %s", s.Ctr, s.Mode, v1alpha1.AnnotationMode, v1alpha1.ModeLimiter)
		case target.Mem > asked.Mem:
			return nil, fmt.Errorf("container %s asks for %d MiB of device %s, and can't have more", s.Ctr, asked.Mem, s.device.UUID)
		case target == is:
			continue
		}
		changes = true
		s.Asked, s.Resize = &asked, &v1alpha1.SliceResize{Amounts: target, From: is, Number: number}
		s.Core, s.Mem = max(is.Core, target.Core), max(is.Mem, target.Mem)
	}
	if !changes {
		return nil, nil
	}
	grants.Recount(next, pod)
	for i := range next.Spec.Devices {
		d := &next.Spec.Devices[i]
		sum, was := sumOf(d), sumOf(&ledger.Spec.Devices[i])
		if sum.Core > max(d.Core, was.Core) || sum.Mem > max(d.Mem, was.Mem) {
			return nil, fmt.Errorf("device %s has %d %% and %d MiB free; %w", d.UUID, d.Core-was.Core, d.Mem-was.Mem, errDeferred)
		}
	}
	if !ledger.Status.TakesSlices() {
		return nil, fmt.Errorf("node %s takes no slices now, see the conditions of its ledger; %w", ledger.Name, errDeferred)
	}
	return next, nil
}

func sumOf(d *v1alpha1.DeviceLedger) (sum placement.Amount) {
	for i := range d.Slices {
		sum = sum.Plus(placement.AmountOf(&d.Slices[i]))
	}
	return sum
}

// finish is the ledger in which the pod's slices count with what the node agent reports to be in
// force. A container of which it does not report that yet goes on counting with the larger.
//
// The condition of a resize that is in force follows from that ledger. One that was refused is
// reported here, if the annotation still asks for it.
func finish(pod *corev1.Pod, ledger *v1alpha1.SliceLedger, to v1alpha1.Resize) Next {
	next, refused := ledger.DeepCopy(), ""
	asked := to != nil
	for _, s := range slicesOf(pod, next) {
		if s.Resize == nil {
			continue
		}
		is, all := reported(ledger, s)
		if !all {
			return Next{}
		}
		if s.Core, s.Mem = is.InForce.Core, is.InForce.Mem; s.Asked != nil && *s.Asked == *is.InForce {
			s.Asked = nil
		}
		asked = asked && to[s.Ctr].Of(s.Resize.Amounts) == s.Resize.Amounts
		if s.Resize = nil; is.Refused != "" {
			refused = is.Refused
		}
	}
	grants.Recount(next, pod)
	if refused != "" && asked {
		return Next{next, ReasonInfeasible, to.String() + ": " + refused}
	}
	return Next{Ledger: next}
}

// reported is what the agent reports of a slice; false while it doesn't say so of the number. A
// container that is started again can be listed twice for a moment.
func reported(ledger *v1alpha1.SliceLedger, s slice) (is v1alpha1.SliceStatus, all bool) {
	most := v1alpha1.Amounts{}
	for _, of := range ledger.Status.Slices {
		if of.Pod != s.Pod || of.Ctr != s.Ctr || of.UUID != s.device.UUID {
			continue
		}
		if of.Resized != s.Resize.Number || of.InForce == nil {
			return is, false
		}
		is, all = of, true
		most = v1alpha1.Amounts{Core: max(most.Core, of.InForce.Core), Mem: max(most.Mem, of.InForce.Mem)}
	}
	is.InForce = &most
	return is, all
}
