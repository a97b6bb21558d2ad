// SPDX-License-Identifier: Apache-2.0

// Package worker owns the loop in which parts of the node agent do what others ask them for, one
// item at a time. An item that fails is tried again.
package worker

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Queue has the items that are asked for. To add an item to it never blocks.
type Queue[T comparable] = workqueue.TypedRateLimitingInterface[T]

// NewQueue makes a queue. The pause after an item has failed doubles from least to most.
func NewQueue[T comparable](least, most time.Duration) Queue[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](least, most))
}

// Run does what is asked for until ctx ends. An item for which do returns a time is due once
// more after that, and one that fails after its pause.
func Run[T comparable](ctx context.Context, queue Queue[T], do func(T) (again time.Duration, err error)) error {
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for {
		item, shutdown := queue.Get()
		if shutdown {
			return nil
		}
		if again, err := do(item); err != nil {
			queue.AddRateLimited(item)
		} else if queue.Forget(item); again > 0 {
			queue.AddAfter(item, again)
		}
		queue.Done(item)
	}
}
