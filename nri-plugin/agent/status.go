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
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
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
		s.Devices, s.Topology = now.Devices, now.Topology
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
	if before == "" || before == now || a.toldDriver == now {
		return
	}
	a.toldDriver = now
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
