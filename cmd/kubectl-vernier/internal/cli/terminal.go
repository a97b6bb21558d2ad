// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/printers"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// terminal is a screen that tables are fitted to. What goes elsewhere, to a file or
// a pipe, is left as it is.
type terminal struct {
	io.Writer
	// width in characters; 0 is not known.
	width  int
	colour bool
}

// escaped shows the control characters of what is printed and does not send them: names, messages
// and models are others' texts, and a terminal does what these say.
type escaped struct{ io.Writer }

func (e escaped) Write(text []byte) (int, error) {
	_, err := io.WriteString(e.Writer, escape(string(text)))
	return len(text), err
}

// Escaped is the writer, for texts that others may have written.
func Escaped(out io.Writer) io.Writer {
	if t, is := out.(*terminal); is { // which escapes before it paints
		return t
	}
	return escaped{out}
}

// escape is kubectl's escape, and all else that is not printed: other control characters, and marks
// that change the direction of writing.
func escape(text string) string {
	var b strings.Builder
	for _, r := range printers.EscapeTerminal(text) {
		switch {
		case r == '\n' || r == '\t' || unicode.IsGraphic(r):
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			b.WriteString("^" + string(r^0x40))
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// whole is the writer behind a screen, for what must not be fitted to it.
func whole(out io.Writer) io.Writer {
	if t, ok := out.(*terminal); ok {
		return escaped{t.Writer}
	}
	return out
}

// raw is the writer behind all others, for what is encoded.
func raw(out io.Writer) io.Writer {
	if e, is := whole(out).(escaped); is {
		return e.Writer
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
	bad  = regexp.MustCompile(`\b(unhealthy|missing|cordoned|refused|False|Unknown|hint|warning)\b`)
	good = regexp.MustCompile(`\b(ok|admitted|attached|True)\b`)
)

// Write prints lines, with what matters in colour. Text comes in whole lines.
func (t *terminal) Write(text []byte) (int, error) {
	painted := escape(string(text))
	if t.colour {
		painted = good.ReplaceAllString(bad.ReplaceAllString(painted, red+"$1"+plain), green+"$1"+plain)
	}
	_, err := io.WriteString(t.Writer, painted)
	return len(text), err
}

// printTitle prints the title of a table.
func printTitle(out io.Writer, title string) {
	if t, ok := out.(*terminal); ok && t.colour {
		fmt.Fprintln(t.Writer, bold+escape(title)+plain)
		return
	}
	fmt.Fprintln(whole(out), title)
}

// printTable prints a table, on a screen no wider than that, and returns the width of its
// first line.
func printTable(out io.Writer, table view.Table, header bool) (width int, err error) {
	screen, is := out.(*terminal)
	if !is {
		screen = &terminal{Writer: out}
	}
	head, rows := table.Lines(screen.width, header)
	width = utf8.RuneCountInString(append(head, rows...)[0])
	for i, line := range head {
		if screen.colour {
			head[i] = bold + line + plain
		}
	}
	if header {
		if _, err := io.WriteString(screen.Writer, strings.Join(head, "\n")+"\n"); err != nil {
			return 0, err
		}
	}
	_, err = io.WriteString(screen, strings.Join(rows, "\n")+"\n")
	return width, err
}
