// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/hooks"
)

// fill sets every field of the ledger's status from the parts' present state. A
// part that does not know yet, as after a restart, leaves what was written
// before.
func (a *agent) fill(s *v1alpha1.SliceLedgerStatus) {
	s.ObservedGeneration = a.ledger.Index().Generation
	if now, scanned := a.watcher.Snapshot(); scanned {
		s.Driver = now.Driver
		s.Devices = now.Devices
		s.Summary = summary(now.Devices)
	}
	if a.book.Synced() {
		s.Slices = a.book.Slices()
		s.Released = a.book.Fenced()
	}
	meta.SetStatusCondition(&s.Conditions, a.ready())
}

func summary(devices []v1alpha1.DeviceStatus) v1alpha1.SummaryStatus {
	var models []string
	for _, d := range devices {
		if !slices.Contains(models, d.Model) {
			models = append(models, d.Model)
		}
	}
	return v1alpha1.SummaryStatus{Devices: v1alpha1.DeviceCount(len(devices)), Models: strings.Join(models, ",")}
}

// ready is the condition that lets the allocator grant slices here.
func (a *agent) ready() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch nvml, runtime := a.watcher.Err(), a.connection.Err(); {
	case nvml != nil:
		c.Reason, c.Message = "NVMLFailed", nvml.Error()
	case errors.Is(runtime, hooks.ErrNoValidator):
		c.Reason, c.Message = "RuntimeUnguarded", runtime.Error()
	case runtime != nil:
		c.Reason, c.Message = "RuntimeDisconnected", runtime.Error()
	default:
		c.Status, c.Reason = metav1.ConditionTrue, "Ready"
		c.Message = "devices are seen and containers are guarded"
	}
	return c
}
