// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
	"time"
)

// TestCopiesAreCharged: every call that copies or fills is a launch that is charged.
func TestCopiesAreCharged(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{90, 100})
	p := c.start()
	p.do("stream 1", "stream 2")
	count := p.call("copy_all")[0]
	p.want("destroy_stream 2", ok) // the thread tells what it has launched
	u := c.usage().Devices[0]
	if count < 84 || u.Launches != uint64(count) {
		t.Errorf("%d calls, %d launches charged", count, u.Launches)
	}
	if busy := c.busy(); busy < time.Duration(count)*10*time.Microsecond || u.Busy < busy/2 {
		t.Errorf("charged %v, the device worked %v", u.Busy, busy)
	}
}

// TestCopiesKeepTheQuota: of device time for copies, fills and cooperative launches
// on named devices, a container has its quota, as of any other.
func TestCopiesKeepTheQuota(t *testing.T) {
	t.Parallel()
	for how, name := range []string{"fills", "copies", "copies that are waited for", "cooperative launches"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{10, 1000})
			p := c.start()
			p.want("stream 1", ok)
			took := time.Duration(p.call(fmt.Sprintf("burn_otherwise %d 600", how))[0]) * time.Millisecond
			busy, u := c.busy(), c.usage().Devices[0]
			t.Logf("%.1f %%, charged %v", 100*float64(busy)/float64(took), u.Busy)
			if took < 600*time.Millisecond || busy > took/10+25*time.Millisecond {
				t.Errorf("the device worked %v in %v", busy, took)
			}
			// The last few needn't be measured yet.
			if busy == 0 || u.Busy+25*time.Millisecond < busy*9/10 || u.Launches == 0 {
				t.Errorf("counters: %+v; the device worked %v", u, busy)
			}
		})
	}
}

// TestCapturesOfCopies: copies and fills that are captured become nodes, nothing is
// added to them, and none is charged.
func TestCapturesOfCopies(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{50, 100})
	p := c.start()
	p.want("stream 1", ok)
	if nodes := p.call("capture_copies")[0]; nodes != 2 {
		t.Errorf("%d nodes, want 2", nodes)
	}
	if u := c.usage().Devices[0]; u.Launches != 0 {
		t.Errorf("%d launches charged", u.Launches)
	}
}
