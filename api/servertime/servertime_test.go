// SPDX-License-Identifier: Apache-2.0

package servertime

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

// world has a component's clock, the API server's, and the time since boot.
type world struct {
	wall, server time.Time
	elapsed      time.Duration
	*Clock
}

func newWorld() *world {
	w := &world{wall: time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC), elapsed: time.Hour}
	w.server = w.wall
	w.Clock = New(func() time.Time { return w.wall }, func() time.Duration { return w.elapsed })
	return w
}

// pass has all clocks go on.
func (w *world) pass(d time.Duration) {
	w.wall, w.server, w.elapsed = w.wall.Add(d), w.server.Add(d), w.elapsed+d
}

func (w *world) contact() { w.Observe(w.server.Truncate(time.Second)) }

func TestRead(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*world)
		wrong  string
		ahead  time.Duration // of the true time
	}{
		"in step":                  {func(w *world) { w.contact() }, "", 0},
		"no answer yet":            {func(*world) {}, "has not answered", 0},
		"29 s behind":              {func(w *world) { w.wall = w.wall.Add(-28 * time.Second); w.contact() }, "", 0},
		"a minute behind":          {func(w *world) { w.wall = w.wall.Add(-time.Minute); w.contact() }, "1m1s behind", 0},
		"a minute ahead":           {func(w *world) { w.wall = w.wall.Add(time.Minute); w.contact() }, "59s ahead", time.Minute},
		"an hour back later":       {func(w *world) { w.contact(); w.Read(); w.wall = w.wall.Add(-time.Hour) }, "1h0m1s behind", 0},
		"an hour forward later":    {func(w *world) { w.contact(); w.Read(); w.wall = w.wall.Add(time.Hour) }, "59m59s ahead", time.Hour},
		"the server an hour back":  {func(w *world) { w.contact(); w.Read(); w.server = w.server.Add(-time.Hour); w.contact() }, "59m59s ahead", 0},
		"the server an hour ahead": {func(w *world) { w.server = w.server.Add(time.Hour); w.contact() }, "1h0m1s behind", time.Hour},
		"both an hour back": {func(w *world) {
			w.contact()
			w.Read()
			w.wall, w.server = w.wall.Add(-time.Hour), w.server.Add(-time.Hour)
			w.contact()
		}, "put back by 1h0m0s", 0},
		"away for a day": {func(w *world) { w.contact(); w.pass(24 * time.Hour) }, "", 0},
		"away, and back": {func(w *world) { w.contact(); w.pass(24 * time.Hour); w.wall = w.wall.Add(-time.Hour) }, "1h0m1s behind", 0},
		"repaired": {func(w *world) {
			w.wall = w.wall.Add(time.Hour)
			w.contact()
			w.Read()
			w.wall = w.wall.Add(-time.Hour)
		}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			truth := w.elapsed
			began := w.wall
			tt.change(w)
			r := w.Read()
			is := began.Add(w.elapsed - truth)
			if off := r.Now.Sub(is) - tt.ahead; off < 0 || off > time.Second {
				t.Errorf("now is %v from %v ahead of the true time", off, tt.ahead)
			}
			if (r.Err() == nil) != (tt.wrong == "") || r.Err() != nil && !strings.Contains(r.Err().Error(), tt.wrong) || r.Trusted() != (r.Err() == nil) {
				t.Errorf("error %v, want %q", r.Err(), tt.wrong)
			}
		})
	}
}

// The time never goes back, whatever is done to the clocks one after the other.
func TestNow_NeverGoesBackByTheSteps(t *testing.T) {
	w := newWorld()
	w.contact()
	before := w.Read().Now
	for range 100 {
		w.pass(time.Minute)
		w.wall = w.wall.Add(-7 * time.Second) // too little each time to be distrusted
		w.server = w.server.Add(-7 * time.Second)
		w.contact()
		if now := w.Read().Now; now.Sub(before) < time.Minute {
			t.Fatalf("a minute took %v", now.Sub(before))
		} else {
			before = now
		}
	}
}

func TestWrap(t *testing.T) {
	date, late := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC), false
	w := newWorld()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Date", date.Format(http.TimeFormat))
		if late {
			w.elapsed += 6 * time.Second
		}
	}))
	defer server.Close()
	api := &http.Client{Transport: w.Wrap(http.DefaultTransport)}
	get := func() {
		t.Helper()
		response := must.Get(api.Get(server.URL))(t)
		must.Get(io.Copy(io.Discard, response.Body))(t)
		must.Do(t, response.Body.Close())
	}
	if get(); !w.Read().Known || !w.Read().Trusted() {
		t.Error("the answer was not observed")
	}
	date, late = date.Add(time.Hour), true
	if get(); !w.Read().Trusted() {
		t.Error("an answer counts that took 6 seconds")
	}
	late = false
	if get(); w.Read().Trusted() {
		t.Error("a server that is an hour ahead is trusted")
	}
	if inner := api.Transport.(interface{ WrappedRoundTripper() http.RoundTripper }).WrappedRoundTripper(); inner != http.DefaultTransport {
		t.Errorf("below is %v", inner)
	}
}

// The kernel's clock goes on.
func TestSinceBoot(t *testing.T) {
	if a, b := SinceBoot(), SinceBoot(); a <= 0 || b < a {
		t.Errorf("%v, then %v", a, b)
	}
}

// What is compared are the times that the wall clock shows. Go's own clock goes on past its steps.
func TestRead_HasNoMonotonicClock(t *testing.T) {
	if now := New(time.Now, SinceBoot).Read().Now; now != now.Round(0) {
		t.Errorf("now is %v", now)
	}
}
