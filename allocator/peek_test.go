// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/podrequest"
)

// requestsOf are the pods with what they ask for.
func requestsOf(a *Allocator, pods ...*corev1.Pod) (asks []scheduling.Request) {
	for _, pod := range pods {
		if ask, err := scheduling.RequestOf(pod, a.scheduler.Classes); err == nil {
			asks = append(asks, ask)
		}
	}
	return asks
}

// fit is a whole search for places for a gang, with all of its pauses.
func fit(ctx context.Context, a *Allocator, asks []scheduling.Request, need int, within ...scheduling.Within) ([]binding.Assignment, *scheduling.GangDiagnosis, error) {
	for {
		choices, miss, err := a.scheduler.ScheduleGang(ctx, podrequest.Group{Name: "fit"}, asks, need, append(within, scheduling.Within{})[0])
		if later := (queue.Yield{}); !errors.As(err, &later) {
			return choices, miss, err
		}
	}
}

// clockInTest is a clock that a test may replace.
type clockInTest struct{ clock.WithTicker }
