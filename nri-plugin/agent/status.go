// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/numa"
)

// fill sets every field of the ledger's status from the parts' present state. A
// part that does not know yet, as after a restart, leaves what was written
// before.
func (a *agent) fill(s *v1alpha1.SliceLedgerStatus) {
	index := a.ledger.Index()
	s.ObservedGeneration = index.Generation
	if now, scanned := a.watcher.Snapshot(); scanned {
		a.compareDriver(s.Driver.Version, now.Driver.Version)
		s.Driver = now.Driver
		s.Devices, s.Topology = slices.Clone(now.Devices), now.Topology
		for i := range s.Devices {
			s.Devices[i].Lendable = a.lender.lendable(s.Devices[i].UUID)
			// Where it is no less than what is granted it says nothing.
			if d := &s.Devices[i]; a.account != nil && index.Granted(d.UUID).Core > 0 {
				if busy := a.account.ExpectedBusy(d.UUID); busy < index.Granted(d.UUID).Core {
					d.ExpectedBusy = &busy
				}
			}
		}
		s.Summary.Devices, s.Summary.Models = summary(now.Devices)
		if index.UID != "" {
			// It goes with observedGeneration, which each change of the spec has written anyway.
			index.Sum(now.Devices, &s.Summary)
		}
	}
	s.Misaligned = a.connection.Plugin.Misaligned.Keep(func(pod types.UID, node int32) bool {
		now, _ := a.watcher.Snapshot()
		_, off := numa.Off(node, index.Devices(pod), &now)
		return off
	})
	if a.table.Synced() {
		s.Slices = a.table.Slices()
		for i := range s.Slices {
			s.Slices[i].IdleSince = a.account.IdleSince(s.Slices[i].Container, s.Slices[i].UUID)
			s.Slices[i].StarvedSince = a.account.StarvedSince(s.Slices[i].Container, s.Slices[i].UUID)
		}
		a.drift(s)
		s.Released = a.table.Fenced()
	}
	meta.SetStatusCondition(&s.Conditions, a.ready())
}

// reasonDriver is that of the event on the ledger when the node has another driver
// than the agent, or the one before it, has last seen.
const reasonDriver = "DriverChanged"

// reasonMIGMode is that of the event on the ledger when a device was put into MIG mode, or
// was not.
const reasonMIGMode = "MIGMode"

// compareDriver tells of another driver, once: a status whose write fails is filled
// again.
func (a *agent) compareDriver(before, now string) {
	if before == "" || before == now || a.reportedDriver == now {
		return
	}
	a.reportedDriver = now
	a.report.ledger(a.options.Node, reasonDriver, "Observing", fmt.Sprintf("the node's NVIDIA driver is %s, it was %s; CDI specs are made for it, and containers that run keep what they were started with", now, before))
}

func summary(devices []v1alpha1.DeviceStatus) (v1alpha1.DeviceCount, string) {
	var models []string
	for _, d := range devices {
		if !slices.Contains(models, d.Model) {
			models = append(models, d.Model)
		}
	}
	return v1alpha1.DeviceCount(len(devices)), strings.Join(models, ",")
}

// ready is the condition that lets the allocator grant slices here.
func (a *agent) ready() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch nvml, runtime := a.watcher.Err(), a.connection.Err(); {
	case errors.Is(nvml, device.ErrReplaced):
		c.Reason, c.Message = "DriverReplaced", nvml.Error()
	case errors.Is(nvml, device.ErrMismatch):
		c.Reason, c.Message = "DriverMismatch", nvml.Error()
	case nvml != nil:
		c.Reason, c.Message = "NVMLFailed", nvml.Error()
	case errors.Is(runtime, hooks.ErrNoValidator):
		c.Reason, c.Message = "RuntimeUnguarded", runtime.Error()
	case runtime != nil:
		c.Reason, c.Message = "RuntimeDisconnected", runtime.Error()
	default:
		c.Status, c.Reason = metav1.ConditionTrue, "Ready"
		c.Message = "devices are seen and containers are guarded"
		if now, _ := a.watcher.Snapshot(); len(now.Unseen) > 0 {
			c.Message += "; of these nothing is seen: " + strings.Join(now.Unseen, "; ")
		}
	}
	return c
}

// Reasons of the condition.
const (
	reasonEdited    = "SpecEdited"
	reasonAsGranted = "AsGranted"
)

// maxDrifted is how many slices the condition names.
const maxDrifted = 3

// drift says of which containers the spec grants other amounts than they run with. Those change by
// a resize alone, so without one somebody has edited the spec. The
// condition is there from the first time on.
func (a *agent) drift(s *v1alpha1.SliceLedgerStatus) {
	var drifted []string
	index := a.ledger.Index()
	for _, e := range a.table.All() {
		if !e.Prepared || e.Status == nil {
			continue
		}
		granted := index.Grants(e.Key())
		for _, has := range a.inForce(e) {
			i := slices.IndexFunc(granted, func(g ledger.Grant) bool { return g.UUID == has.UUID })
			if i < 0 {
				continue // the allocator puts back what is gone
			}
			is, g := v1alpha1.Amounts{Core: has.Core, Mem: has.Mem}, granted[i]
			as := is == v1alpha1.Amounts{Core: g.Core, Mem: g.Mem}
			if as && is == g.Asked && g.Resize.Number == 0 {
				continue
			}
			for j := range s.Slices {
				if of := &s.Slices[j]; of.Container == e.ID && of.UUID == has.UUID {
					of.InForce = &is
				}
			}
			if as || g.Resize.Number != 0 {
				continue // it is being resized, or was
			}
			drifted = append(drifted, fmt.Sprintf("container %s of pod %s runs with %s of %s and is granted %s",
				e.Name, e.Owner, v1alpha1.AmountsText(has.Core, has.Mem), has.UUID, v1alpha1.AmountsText(granted[i].Core, granted[i].Mem)))
		}
	}
	slices.Sort(drifted)
	switch n := len(drifted); {
	case n > 0:
		text := strings.Join(drifted[:min(n, maxDrifted)], "; ")
		if n > maxDrifted {
			text += fmt.Sprintf("; and %d more", n-maxDrifted)
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionTrue,
			Reason: reasonEdited, Message: text + ". Put the spec back, or delete the pods"})
	case meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDrifted) != nil:
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionFalse,
			Reason: reasonAsGranted, Message: "containers run with what the spec grants"})
	}
}

// inForce are the amounts that a running container was given, of the modes that give any but
// whole devices and instances.
func (a *agent) inForce(e attach.Entry) []ledger.Grant {
	if m, err := a.modes.For(e.Container); err != nil || m != a.modes[v1alpha1.ModeLimiter] && m != a.modes[v1alpha1.ModeMPS] {
		return nil
	}
	return a.modes.Recall(e.Container, nil)
}
