// SPDX-License-Identifier: Apache-2.0

package tests

import "testing"

// TestCapturesAmongWaiting: launches that wait for the quota when another thread
// begins a capture don't break it, though they ask about their events meanwhile.
func TestCapturesAmongWaiting(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{5, 100})
	p := c.start()
	p.do("stream 1", "churn 2")
	until := func(count int) {
		for p.call("churned")[1] < count {
			if failed := p.call("churned")[0]; failed != ok {
				t.Fatalf("a launch failed with %d", failed)
			}
		}
	}
	for range 10 {
		until(p.call("churned")[1] + 100)
		p.want("begin_capture 1", ok)
		until(p.call("churned")[1] + 100)
		p.want("end_capture 1", ok)
	}
}

// TestPoolDestroyedInACapture: the library waits for nothing that a capture doesn't
// survive.
func TestPoolDestroyedInACapture(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("stream 1", "pool 1 0", "from_pool 1 30 1 0", "free_async 1 0", "begin_capture 1", "destroy_pool 1",
		"end_capture 1")
	p.wantUsed(0, 100)
}
