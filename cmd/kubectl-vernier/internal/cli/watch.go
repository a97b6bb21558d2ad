// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// watchPeriod is the time between two looks.
const watchPeriod = 2 * time.Second

// watched looks again and again until the user has seen enough. On a terminal each
// picture takes the place of the last; elsewhere they follow each other, after an
// empty line.
func (c *command) watched(ctx context.Context, look func() error) error {
	if !c.output.forPeople() {
		return errors.New("--watch is for people: leave it out with -o json and -o yaml, or leave these out")
	}
	out := c.out
	defer func() { c.out = out }()
	for first := true; ; first = false {
		// A whole picture at a time: a screen that is emptied first flickers.
		var picture bytes.Buffer
		c.out = &picture
		if t, ok := out.(*terminal); ok {
			c.out = &terminal{Writer: &picture, width: t.width, colour: t.colour}
		}
		err := look()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.show(out, picture.Bytes(), first); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.after(watchPeriod):
		}
	}
}

// show prints one picture, past the fitting that it has been through.
func (c *command) show(out io.Writer, picture []byte, first bool) error {
	lead := "\n"
	if first {
		lead = ""
	}
	if t, ok := out.(*terminal); ok {
		out, lead = t.Writer, clear
	}
	_, err := out.Write(append([]byte(lead), picture...))
	return err
}
