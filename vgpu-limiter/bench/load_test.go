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

	"vernier.dev/vernier/test/must"
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
	in := must.Get(l.cmd.StdinPipe())(b)
	out := must.Get(l.cmd.StdoutPipe())(b)
	must.Do(b, l.cmd.Start())
	l.in, l.out = in, bufio.NewReader(out)
	if line, err := l.out.ReadString('\n'); err != nil || line != "ready\n" {
		b.Fatalf("load %s: %q, %v", arguments, line, err)
	}
	return l
}

func (l *load) begin(b *testing.B) {
	b.Helper()
	must.Get(l.in.Write([]byte{'\n'}))(b)
}

// longest waits for its end and returns how long the longest launch took, in ms.
func (l *load) longest(b *testing.B) float64 {
	b.Helper()
	var launches, ns float64
	must.Get(fmt.Fscan(l.out, &launches, &ns))(b)
	must.Do(b, l.cmd.Wait())
	return ns / 1e6
}
