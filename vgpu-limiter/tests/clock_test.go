// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clock is the tests' side of clock/clock.c. clock/keeper.c takes part for it as the first
// thread: nobody else runs while it doesn't sleep.
type clock struct {
	path   string
	keeper *process
	at     time.Duration
}

const clockBytes = 16 * 65

func newClock(t *testing.T, b built) *clock {
	t.Helper()
	c := &clock{path: filepath.Join(t.TempDir(), "clock")}
	if err := os.WriteFile(c.path, make([]byte, clockBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	in := &container{t: t, dir: t.TempDir(), built: b}
	c.keeper = &process{t: t, cmd: in.command("", "keeper"), stderr: &strings.Builder{}}
	c.keeper.cmd.Env = append(c.keeper.cmd.Env, c.environment(false)...)
	c.keeper.cmd.Stderr = c.keeper.stderr
	c.keeper.begin()
	c.tell("over", 0)
	return c
}

// environment is what puts a program on the clock: one that only reads it, or one
// whose threads take part.
func (c *clock) environment(watches bool) []string {
	env := []string{"CLOCK=" + c.path}
	if watches {
		env = append(env, "CLOCK_WATCH=1")
	}
	return env
}

// tell has the keeper do something, and returns whether all others have ended.
func (c *clock) tell(what string, n int64) bool {
	var over int
	answer := c.keeper.echo(fmt.Sprintf("%s %d", what, n))
	if _, err := fmt.Sscan(answer, (*int64)(&c.at), &over); err != nil {
		c.keeper.t.Fatalf("%q: %v", answer, err)
	}
	return over != 0
}

func (c *clock) now() time.Duration { return c.at }

// await returns when so many threads take part.
func (c *clock) await(threads int) { c.tell("await", int64(threads)) }

// over: all others have ended.
func (c *clock) over() bool { return c.tell("over", 0) }

// sleep lets the others run until then.
func (c *clock) sleep(until time.Duration) { c.tell("sleep", int64(until)) }
