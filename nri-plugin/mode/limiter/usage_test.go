// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

// Use is read from the counters of that run, and not from damaged ones.
func TestUsage(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	if _, err := l.Usage(c); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before its creation: %v", err)
	}
	dir := inject(t, l, c)
	if u, err := l.Usage(c); err != nil || len(u.Devices) != len(c.Grants) {
		t.Errorf("%+v, %v", u, err)
	}
	fewer := c
	fewer.Grants = c.Grants[:1]
	if _, err := l.Usage(fewer); err == nil {
		t.Error("counters of other devices are taken for the container's")
	}
	must(t, os.Truncate(dir.counters(), 10))
	if _, err := l.Usage(c); err == nil {
		t.Error("damaged counters are read")
	}
}
