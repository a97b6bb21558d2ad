// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

// slowed is what the counters of a container say of its slowdown on the node's device.
func (n *node) slowed(c *container) (float64, bool) {
	n.t.Helper()
	u := c.usage()
	return u.Slowdown(0, n.clock.now())
}

// wantSlowdown compares it with how much longer the device makes launches take.
func (n *node) wantSlowdown(c *container, when string, want float64) {
	n.t.Helper()
	got, known := n.slowed(c)
	n.t.Logf("%s: %.2f, want %.2f", when, got, want)
	if !known || math.Abs(got/want-1) > 0.05 {
		n.t.Errorf("%s: %.2f, %t, want %.2f", when, got, known, want)
	}
}

// TestSlowdown: the slowdown is what the device stretches launches by, up and down, whatever
// the launches are.
func TestSlowdown(t *testing.T) {
	t.Parallel()
	for _, c := range []tenant{
		{30, "1000 108"}, {90, "10 1"}, {30, "100 108"}, {10, "5000 108"}, {30, "1000 108 1 sync"}, {50, "2000 108 1 graph"},
		{50, "1000 108 1 mixed"}, {40, "train 100 40 1"}, {90, "train 200 60 30"}, {50, "1000 108 4"}, {60, "1000 108 1 ends"},
	} {
		t.Run(strconv.Itoa(c.quota)+"x"+strings.ReplaceAll(c.load, " ", "_"), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, false)
			program, _ := c.program()
			of := n.add(c.quota, false)
			began := n.clock.now()
			p := n.start(of, program, append([]string{"51"}, strings.Fields(c.load)...)...)
			n.begin([]*process{p}, []tenant{c})
			n.run(began + 20*time.Second)
			n.wantSlowdown(of, "alone", 1)
			for i, percent := range []int{140, 100, 250} {
				of.ctl("stretch", "0", strconv.Itoa(percent))
				n.run(began + time.Duration(30+10*i)*time.Second)
				n.wantSlowdown(of, "stretched to "+strconv.Itoa(percent), float64(percent)/100)
			}
			n.finish()
		})
	}
}

// TestSlowdownInTurns: containers that have turns don't slow each other down.
func TestSlowdownInTurns(t *testing.T) {
	t.Parallel()
	for _, serial := range []bool{false, true} {
		for _, tenants := range [][]tenant{
			{{30, "1000 108"}, {60, "500 108"}}, {{30, "5000 108"}, {60, "100 108"}}, {{20, "1000 108"}, {30, "1000 108"}, {40, "1000 108"}},
			{{50, "train 100 40 1"}, {30, "10 108"}},
		} {
			t.Run(fmt.Sprint(tenants, serial), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, serial)
				var running []*process
				for _, c := range tenants {
					program, _ := c.program()
					running = append(running, n.start(n.add(c.quota, false), program, append([]string{"21"}, strings.Fields(c.load)...)...))
				}
				n.begin(running, tenants)
				n.run(n.clock.now() + 20*time.Second)
				for i, c := range n.containers {
					n.wantSlowdown(c, tenants[i].load, 1)
				}
				n.finish()
			})
		}
	}
}

// TestSlowdownBesideOthers: a process that no limit holds, and that works all the time, has half of
// the device's time, so that launches take twice as long.
func TestSlowdownBesideOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t, false)
	c := n.add(40, false)
	load := []tenant{{40, "1000 108"}}
	p := n.start(c, "load", "31", "1000", "108")
	n.begin([]*process{p}, load)
	began := n.clock.now()
	n.run(began + 10*time.Second)
	n.wantSlowdown(c, "alone", 1)
	other := n.startOther("load", "20", "1000", "108")
	n.begin([]*process{other}, load)
	n.clock.await(2)
	n.run(began + 25*time.Second)
	n.wantSlowdown(c, "beside another", 2)
	n.finish()
}

// TestNoSlowdown: it is not known before there are 100 samples, nor of a container that
// isn't measured, nor of launches that others of the same process always run beside.
func TestNoSlowdown(t *testing.T) {
	t.Parallel()
	for _, c := range []tenant{{0, "1000 108"}, {100, "1000 108"}, {30, "100000 108"}, {90, "300 108 8"}, {90, "serve 8 30 10 300"}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, false)
			of := n.add(c.quota, false)
			program, _ := c.program()
			p := n.start(of, program, append([]string{"21"}, strings.Fields(c.load)...)...)
			n.begin([]*process{p}, []tenant{c})
			n.run(n.clock.now() + 20*time.Second)
			if got, known := n.slowed(of); known {
				t.Errorf("%.2f", got)
			}
			n.finish()
		})
	}
}
