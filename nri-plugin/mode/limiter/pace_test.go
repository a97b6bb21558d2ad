// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// cooperative is a node whose driver has no limits to give.
func cooperative() *driverlimit.Limit {
	return &driverlimit.Limit{Devices: availableDriver{}, Leaf: func(uint32, string) (string, error) { return "", cgroup.ErrNone }}
}

// sharing runs the limiter's loop until the test ends.
func sharing(t *testing.T, l *Limiter) *Limiter {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.ShareTime(ctx) }()
	t.Cleanup(func() {
		stop()
		must.Do(t, <-ended)
	})
	return l
}

// told waits until the container is told something by the loop.
func told(t *testing.T, dir folder) {
	t.Helper()
	silent := must.Get(os.ReadFile(dir.pace()))(t)
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		now, err := os.ReadFile(dir.pace())
		return !bytes.Equal(now, silent), err
	})
	if err != nil {
		t.Fatalf("the loop does not look after the container: %v", err)
	}
}

// Containers share time from their start to their end, also over a restart of the
// agent.
func TestPaceFromStartToEnd(t *testing.T) {
	dir := t.TempDir()
	l := sharing(t, newLimiter(t, dir, cooperative()))
	c := container("1")
	adjust := &api.ContainerAdjustment{}
	must.Do(t, l.Inject(c, adjust))
	run := must.Get(l.folder(c))(t)
	for range 2 {
		all, err := l.Apply(c, 1)
		if err != nil || strings.Contains(all[0].Note, "turns") {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	told(t, run)
	if n := len(l.paced.members); n != 1 {
		t.Errorf("%d containers in the loop, want 1", n)
	}
	// Of a container that the loop does not know, and of none.
	l.Sampled(c.Grants[0].UUID, map[int]int{1: 10, 2: 20, 3: 30}, map[int]string{1: c.ID, 2: "unknown"})

	next := sharing(t, newLimiter(t, dir, cooperative()))
	c.Mounts = adjust.GetMounts()
	next.Observe(c, 1)
	told(t, run)
	must.Do(t, next.Ended(c))
	if n := len(next.paced.members); n != 0 {
		t.Errorf("%d containers in the loop after the end", n)
	}
	// A start that was given up, and is through only now.
	if _, err := next.Apply(c, 1); err != nil || len(next.paced.members) != 0 {
		t.Errorf("%d containers in the loop by a start that came after the end, %v", len(next.paced.members), err)
	}
	must.Do(t, l.Release(c.Pod))
	if n := len(l.paced.members); n != 0 {
		t.Errorf("%d containers in the loop after their pod's end", n)
	}
}

// A container that cannot be told anything starts, has its quota, and says so.
func TestPaceMissing(t *testing.T) {
	l := newLimiter(t, t.TempDir(), cooperative())
	c := container("1")
	must.Do(t, os.Remove(inject(t, l, c).pace()))
	all, err := l.Apply(c, 1)
	if err != nil || !strings.Contains(all[0].Note, "; no turns beside busy neighbours") {
		t.Errorf("%+v, %v", all, err)
	}
}

// A container of a burstable pod bursts up to what it asks for, and its programs can read how far.
func TestBurstable(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("run")
	c.Burstable = true
	c.Grants[0].Asked = v1alpha1.Amounts{Core: c.Grants[0].Core + 15, Mem: c.Grants[0].Mem}
	must.Do(t, l.Prepare(container("")))
	dir := inject(t, l, c)
	got, err := layout.ReadFile(dir.limits())
	if err != nil || !got.Devices[0].MayBurst || got.Devices[0].BurstCore != uint32(c.Grants[0].Asked.Core) || got.Devices[1].MayBurst {
		t.Errorf("limits %+v, %v", got, err)
	}
	text, err := os.ReadFile(string(dir) + "/" + shareFile)
	if want := fmt.Sprintf(`"core":%d,"burstCore":%d`, c.Grants[0].Core, c.Grants[0].Asked.Core); err != nil || !strings.Contains(string(text), want) {
		t.Errorf("programs read %s, %v; want %s", text, err, want)
	}
	c.MayBurst = true
	if got, err = layout.ReadFile(inject(t, l, c).limits()); err != nil || got.Devices[0].BurstCore != 0 {
		t.Errorf("all that is idle: %+v, %v", got, err)
	}
}

// Whoever may burst has it in its limits, where there is a quota to go beyond,
// whatever was made ahead.
func TestMayBurst(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	must.Do(t, l.Prepare(container("")))
	for _, may := range []bool{true, false, true} {
		c := container("run")
		c.MayBurst = may
		got, err := layout.ReadFile(inject(t, l, c).limits())
		if err != nil || got.Devices[0].MayBurst != may || got.Devices[1].MayBurst {
			t.Errorf("may burst %t: %+v, %v", may, got, err)
		}
		if err := l.Ended(c); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}
