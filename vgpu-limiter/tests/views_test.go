// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestViews: whatever a container's processes do meanwhile, CUDA and NVML never show
// it an impossible number: tests/programs/watch.c has what is possible. With all at
// rest they agree with each other and with what the device holds. Beside it works
// another container, of which nothing is to be seen.
func TestViews(t *testing.T) {
	t.Parallel()
	limits := []int{60, 40}
	shares := []share{{0, limits[0]}, {0, limits[1]}}
	c := newLinkedContainer(t, 0, shares...)
	stranger := c.neighbour(shares...).storm(99, 2)
	stranger.send(t, "run 1000000000")
	w := c.watch(limits...)
	seed := 0
	start := func() *stormer {
		seed++
		return c.storm(seed, 3)
	}
	all := []*stormer{start(), start(), start()}
	moves, looks := 3000, 150
	if sanitized {
		moves, looks = moves/4, looks/4
	}
	dice := rand.New(rand.NewPCG(3, 4))
	for range 10 {
		victim := dice.IntN(len(all))
		for i, s := range all {
			if i == victim {
				s.send(t, "run 1000000000") // goes on while the others rest
			} else {
				s.send(t, fmt.Sprintf("run %d", moves))
			}
		}
		there := []int{w.cmd.Process.Pid}
		for _, s := range all {
			there = append(there, s.cmd.Process.Pid)
		}
		for range 2 {
			c.wantPossible(w, looks, there)
		}
		all[victim].kill()
		for i, s := range all {
			if i != victim {
				s.rests(t)
			}
		}
		c.wantPossible(w, 1, slices.Delete(there, victim+1, victim+2))
		all[victim] = start()
		all[victim].send(t, fmt.Sprintf("run %d", moves))
		all[victim].rests(t)
		// Nobody but the other container changes anything now.
		observer := c.start()
		observer.want("primary 1 1", ok)
		for device := range limits {
			observer.want(fmt.Sprintf("current %d", device), ok)
			observer.want("alloc 1 1000", outOfMemory) // takes off what the dead have left
		}
		observer.end()
		rest := strings.Fields(w.echo("rest"))
		for device := range limits {
			cuda, nvml, processes := rest[device*3], rest[device*3+1], rest[device*3+2]
			sum, err := strconv.ParseUint(processes, 10, 64)
			used := c.usage().Devices[device].UsedBytes
			if err != nil || cuda != nvml || cuda != fmt.Sprint(used) || sum > used {
				t.Errorf("device %d: CUDA says %s bytes are used, NVML %s, its processes have %s, the counters say %d",
					device, cuda, nvml, processes, used)
			}
		}
	}
}

// TestViewsAtTheLimit: nor when memory passes from one process to another all the
// time: what both had is not theirs together.
func TestViewsAtTheLimit(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 8})
	w := c.watch(8)
	there := []int{w.cmd.Process.Pid}
	for range 3 {
		p := c.start()
		p.want("churn 2", ok)
		there = append(there, p.cmd.Process.Pid)
	}
	looks := 3000
	if sanitized {
		looks /= 4
	}
	c.wantPossible(w, looks, there)
}

// watch starts a process that looks at devices of which the container has so much.
func (c *container) watch(mib ...int) *process {
	c.t.Helper()
	var args []string
	for _, n := range mib {
		args = append(args, strconv.Itoa(n))
	}
	w := c.prepare("libvgpu-test.so")
	w.cmd = c.command("libvgpu-test.so", "watch", args...)
	w.cmd.Stderr = w.stderr
	w.begin()
	w.echo("rest") // it has what it takes
	return w
}

// wantPossible looks at everything so many times, while these processes are there.
func (c *container) wantPossible(w *process, looks int, there []int) {
	c.t.Helper()
	problem, listed, _ := strings.Cut(w.echo(fmt.Sprintf("watch %d", looks)), ";")
	if strings.TrimSpace(problem) != "0" {
		c.t.Errorf("impossible: %s", problem)
	}
	for _, field := range strings.Fields(listed) {
		if pid, err := strconv.Atoi(field); err != nil || !slices.Contains(there, pid) {
			c.t.Errorf("process %s is listed, there are %v", field, there)
		}
	}
}

// TestSmallStacks: memory is charged, refused and seen in threads with the smallest stacks
// that there are, and launches are limited in those with the smallest that the simulated
// driver can launch in; the limit's audit and NVML's view are about all processes of a container.
func TestSmallStacks(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{50, 100})
	if out, err := c.command("libvgpu-test.so", "small", "16").CombinedOutput(); err != nil || string(out) != "0 2 0 0 0 0 0\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := c.command("libvgpu-test.so", "small", "24", "launches").CombinedOutput(); err != nil || string(out) != "0 2 0 0 0 0 0 0 0\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if used := c.usage().Devices[0]; used.Launches != 41 {
		t.Errorf("%d launches are measured, want 41", used.Launches)
	}
}

// TestNVMLHidesDevices: NVML lists the devices of the limits alone, as CUDA does with
// CUDA_VISIBLE_DEVICES, counted without gaps; the others are not found by any name.
func TestNVMLHidesDevices(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{}, share{0, 10}, share{}, share{0, 10})
	var args []string
	for i := range 4 {
		args = append(args, c.status(i, "uuid"), c.status(i, "bus"))
	}
	const (
		found, notFound, invalidArgument = 0, 6, 2
	)
	list := fmt.Sprintf("count 0 2\n0 %s\n1 %s\nrefused %d\n", args[2], args[6], invalidArgument)
	want := list + list
	for i := range 4 {
		result := notFound
		if i%2 == 1 {
			result = found
		}
		want += strings.Repeat(fmt.Sprintf("named %d\n", result), 2)
	}
	said, err := c.command("libvgpu-test.so", "devices", args...).CombinedOutput()
	if err != nil || string(said) != want {
		t.Errorf("%v\n%swant\n%s", err, said, want)
	}
}
