// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// load is a running program/load.c.
type load struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// load starts one with these arguments after SECONDS, and returns when it is ready
// to begin.
func (p place) load(b *testing.B, seconds float64, arguments string) *load {
	b.Helper()
	l := &load{cmd: p.command(true, filepath.Join(p.bin, "load"), append([]string{strconv.FormatFloat(seconds, 'f', -1, 64)}, strings.Fields(arguments)...)...)}
	in, err := l.cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	l.in, l.out = in, bufio.NewReader(out)
	if line, err := l.out.ReadString('\n'); err != nil || line != "ready\n" {
		b.Fatalf("load %s: %q, %v", arguments, line, err)
	}
	return l
}

func (l *load) begin(b *testing.B) {
	b.Helper()
	if _, err := l.in.Write([]byte{'\n'}); err != nil {
		b.Fatal(err)
	}
}

// longest waits for its end and returns how long the longest launch took, in ms.
func (l *load) longest(b *testing.B) float64 {
	b.Helper()
	var launches, ns float64
	if _, err := fmt.Fscan(l.out, &launches, &ns); err != nil {
		b.Fatal(err)
	}
	if err := l.cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	return ns / 1e6
}
