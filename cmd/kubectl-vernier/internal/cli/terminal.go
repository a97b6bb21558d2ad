// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminal is a screen that tables are fitted to. What goes elsewhere, to a file or
// a pipe, is left as it is.
type terminal struct {
	io.Writer
	// width in characters; 0 is not known.
	width  int
	colour bool

	// last is where the last column of the latest table begins.
	last int
}

// whole is the writer behind a screen, for what must not be fitted to it.
func whole(out io.Writer) io.Writer {
	if t, ok := out.(*terminal); ok {
		return t.Writer
	}
	return out
}

// screen is the terminal that a file is, or nil.
func screen(out io.Writer) *terminal {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	t := &terminal{Writer: out, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil {
		t.width = width
	}
	return t
}

const (
	bold  = "\x1b[1m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	plain = "\x1b[0m"
	// clear moves to the upper left corner and empties the screen.
	clear = "\x1b[H\x1b[2J"
)

var (
	headers = regexp.MustCompile(`^[A-Z](MiB|[A-Z0-9()%/ .-])+$|^(SLICES|WAITING) in .*$`)
	bad     = regexp.MustCompile(`\b(unhealthy|missing|cordoned|refused|False|Unknown|hint|warning)\b`)
	good    = regexp.MustCompile(`\b(ok|admitted|attached|True)\b`)
)

// Write prints lines, fitted to the screen and with what matters in colour. Text
// comes in whole lines.
func (t *terminal) Write(text []byte) (int, error) {
	var b bytes.Buffer
	for line := range strings.Lines(string(text)) {
		line, ended := strings.CutSuffix(line, "\n")
		head := headers.MatchString(line)
		if head {
			t.last = utf8.RuneCountInString(line[:strings.LastIndex(line, "  ")+1]) + 1
		}
		for i, part := range t.fit([]rune(line)) {
			if i > 0 {
				b.WriteString("\n" + strings.Repeat(" ", t.last))
			}
			b.WriteString(t.paint(part, head))
		}
		if ended {
			b.WriteByte('\n')
		}
	}
	_, err := t.Writer.Write(b.Bytes())
	return len(text), err
}

// fit breaks a line within its last column, which is the one with long texts, or
// cuts it where there is no room for that.
func (t *terminal) fit(line []rune) []string {
	const least = 20
	room := t.width - t.last
	switch {
	case t.width < 2 || len(line) <= t.width:
		return []string{string(line)}
	case room < least:
		return []string{string(line[:t.width-1]) + "…"}
	}
	parts := []string{string(line[:t.width])}
	for line = line[t.width:]; len(line) > room; line = line[room:] {
		parts = append(parts, string(line[:room]))
	}
	return append(parts, string(line))
}

func (t *terminal) paint(line string, head bool) string {
	switch {
	case !t.colour:
		return line
	case head:
		return bold + line + plain
	}
	return good.ReplaceAllString(bad.ReplaceAllString(line, red+"$1"+plain), green+"$1"+plain)
}
