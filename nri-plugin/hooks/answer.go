// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"time"
)

// answerWithin bounds an answer to the runtime, which waits for 2 s, holds every other
// container of the node meanwhile, and drops a plugin that is later. It would then start
// a container whose limits are not set yet (NRI before 0.12.5), or refuse it without a
// word on why.
const answerWithin = 1500 * time.Millisecond

// answering bounds what is done for one answer.
func (p *Plugin) answering(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := p.AnswerWithin
	if limit == 0 {
		limit = answerWithin
	}
	return context.WithTimeout(ctx, limit)
}

// prompt does what may wait for the driver, and tells whether it was done before ctx
// ended. A call of the driver cannot be cancelled: one that hangs is left behind.
func prompt[T any](ctx context.Context, do func() T) (result T, done bool) {
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
