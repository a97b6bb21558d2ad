// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

// The benchmark test/bench/colocate has loads of its own replayed.
var (
	replayFile   = flag.String("replay", "", "JSON `file` of the loads that TestReplay replays")
	measuredFile = flag.String("measured", "", "`file` that TestReplay writes its figures to")
)

// replayed is what works on one device for so many seconds.
type replayed struct {
	Seconds    int                 `json:"seconds"`
	Containers []replayedContainer `json:"containers"`
}

// replayedContainer has a quota in percent, and pieces of work: when each begins, and what it takes on the
// device, in seconds. With Again it is an idle slice, and the first one comes again and again, after a pause.
type replayedContainer struct {
	Quota  int          `json:"quota"`
	Bursts bool         `json:"bursts"`
	Pieces [][2]float64 `json:"pieces"`
	Again  bool         `json:"again"`
}

// measured has for each container its percent of the device, and how long each piece took from its moment on, in
// seconds. Those that were under way at the end are left out.
type measured struct {
	Parts []float64   `json:"parts"`
	Took  [][]float64 `json:"took"`
}

// TestReplay: a container has all that its pieces of work take, and an idle slice has most of the rest.
func TestReplay(t *testing.T) {
	if sanitized {
		t.Skip("the clock's threads go one at a time")
	}
	t.Parallel()
	loads := []replayed{{Seconds: 4, Containers: []replayedContainer{
		{Quota: 40, Bursts: true, Pieces: [][2]float64{{0, 0.1}, {1, 0.1}, {2, 0.1}}},
		{Pieces: [][2]float64{{0.001, 0.1}}, Again: true},
	}}}
	if *replayFile != "" {
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(*replayFile))(t), &loads))
	}
	got := make([]measured, len(loads))
	t.Run("loads", func(t *testing.T) {
		for i, l := range loads {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				got[i] = l.replay(t)
				t.Logf("%.2f percent, took %.3f s", got[i].Parts, got[i].Took[0])
			})
		}
	})
	if *measuredFile != "" {
		must.Do(t, os.WriteFile(*measuredFile, must.Get(json.Marshal(got))(t), 0o600))
	} else if first := got[0].Parts; math.Abs(first[0]-7.5) > 0.1 || first[1] < 80 || first[1] > 92.5 {
		t.Errorf("%.1f, want 7.5 and most of the rest", first)
	}
}

func (l replayed) replay(t *testing.T) (m measured) {
	n := newNode(t, true)
	var running []*process
	for _, c := range l.Containers {
		args := []string{strconv.Itoa(l.Seconds), "1000"}
		for _, p := range c.Pieces {
			args = append(args, fmt.Sprintf("%s%.0f:%.0f", map[bool]string{true: "+"}[c.Again], p[0]*1e6, p[1]*1e6))
		}
		quota := c.Quota
		if c.Again {
			quota = idleSlice
		}
		running = append(running, n.start(n.add(quota, c.Bursts), "replay", args...))
	}
	n.begin(running, make([]tenant, len(running)))
	began := n.clock.now() + time.Second // each program's first kernel is over
	n.run(began)
	before := n.done()
	n.run(began + time.Duration(l.Seconds)*time.Second)
	done := n.done()
	n.finish()
	for _, p := range running {
		pid, took := p.cmd.Process.Pid, []float64{}
		for p.out.Scan() {
			took = append(took, must.Get(strconv.ParseFloat(p.out.Text(), 64))(t)/1e6)
		}
		m.Parts = append(m.Parts, 100*(done[pid]-before[pid])/float64(l.Seconds)/1e9)
		m.Took = append(m.Took, took)
	}
	return m
}
