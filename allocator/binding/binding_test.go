// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// So many requests are under way at a time, and all are made.
func TestRequestsAreBounded(t *testing.T) {
	for _, atATime := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			b := &Binder{Requests: atATime}
			var begun atomic.Int32
			answer, done := make(chan bool), false
			go func() {
				b.Each(10, func(int) {
					begun.Add(1)
					<-answer
				})
				done = true
			}()
			for answered := range 10 {
				synctest.Wait() // until no other can begin
				if now := int(begun.Load()) - answered; now != min(atATime, 10-answered) {
					t.Errorf("%d requests under way after %d answers, want %d", now, answered, min(atATime, 10-answered))
				}
				answer <- true
			}
			if synctest.Wait(); !done || begun.Load() != 10 {
				t.Errorf("%d of 10 requests, over: %v", begun.Load(), done)
			}
		})
	}
}
