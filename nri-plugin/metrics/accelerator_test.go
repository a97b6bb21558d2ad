// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
)

// The duty cycle is of the last span that is over, whoever asks in between, and no
// figure of a tenant makes it more or less than can be.
func TestDutyCycle(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	a := newAccelerators("n1", clock)
	key := spanKey{"c", gpu0}
	for _, step := range []struct {
		after, busy time.Duration
		percent     float64
		known       bool
	}{
		{0, time.Minute, 0, false},                             // nothing to compare with
		{5 * time.Second, time.Minute + time.Second, 0, false}, // too short
		{5 * time.Second, time.Minute + 3*time.Second, 30, true},
		{time.Second, 2 * time.Minute, 30, true}, // another reader
		{39 * time.Second, time.Minute + 23*time.Second, 50, true},
		{10 * time.Second, 0, 0, true},
		{10 * time.Second, time.Hour, 100, true},
	} {
		clock.SetTime(clock.Now().Add(step.after))
		if percent, known := a.cycle(key, step.busy); known != step.known || known && percent != step.percent {
			t.Errorf("at %v: %v, %t, want %v, %t", clock.Now(), percent, known, step.percent, step.known)
		}
	}
	a.forget(func(container string) bool { return container != "c" })
	if _, known := a.cycle(key, time.Hour); known || len(a.spans) != 1 {
		t.Error("a container that is gone was remembered")
	}
}

// Of a whole GPU each reading counts for the time since the one before.
func TestBusyTimeOfWholeDevice(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	a := newAccelerators("n1", clock)
	for _, step := range []struct {
		after     time.Duration
		percent   v1alpha1.Percent
		accounted time.Duration
	}{
		{0, 80, 0},
		{10 * time.Second, 50, 5 * time.Second},
		{30 * time.Second, 100, 35 * time.Second},
		{time.Second, 0, 35 * time.Second},
	} {
		clock.SetTime(clock.Now().Add(step.after))
		out := make(chan prometheus.Metric, 2)
		if busy := a.whole(out, accelerator{id: "c", uuid: gpu0}, device.Use{Busy: step.percent}); busy != step.accounted {
			t.Errorf("at %v: %v, want %v", clock.Now(), busy, step.accounted)
		}
	}
}
