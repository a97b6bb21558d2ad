// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"time"
)

// runtimeWaits is how long the runtime waits for an answer where it does not say so. It
// holds every other container of the node meanwhile, and drops a plugin that is later. It
// would then start a container whose limits are not set yet (NRI before 0.12.5), or refuse
// it without a word on why.
const runtimeWaits = 2 * time.Second

// answering bounds what is done for one answer: three quarters of the time that the runtime
// waits, which comes with the request, for containerd can be told to wait longer or shorter.
func (p *Plugin) answering(ctx context.Context) (context.Context, context.CancelFunc) {
	waits := runtimeWaits
	if end, told := ctx.Deadline(); told {
		waits = time.Until(end)
	}
	limit := waits / 4 * 3
	if p.AnswerWithin > 0 {
		limit = min(limit, p.AnswerWithin)
	}
	return context.WithTimeout(ctx, limit)
}

// callWithDeadline does what may wait for the driver, and reports whether it was done before ctx
// ended. A call of the driver cannot be cancelled: one that hangs is left behind.
func callWithDeadline[T any](ctx context.Context, do func() T) (result T, done bool) {
	if ctx.Err() != nil {
		return result, false
	}
	answer := make(chan T, 1)
	go func() { answer <- do() }()
	select {
	case result = <-answer:
		return result, true
	case <-ctx.Done():
		return result, false
	}
}
