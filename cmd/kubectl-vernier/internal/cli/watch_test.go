// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// watching runs a command, and what happens between its looks, until there is
// nothing more to happen.
func watching(t *testing.T, out io.Writer, r client.Client, args string, between ...func()) error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := &command{flags: genericclioptions.NewConfigFlags(true), connect: func() (client.Client, error) { return r, nil },
		now: func() time.Time { return now }, out: out, errOut: out}
	c.after = func(d time.Duration) <-chan time.Time {
		next := make(chan time.Time, 1)
		if len(between) == 0 {
			stop()
			return next
		}
		between[0]()
		between = between[1:]
		next <- now.Add(d)
		return next
	}
	root := c.root()
	root.SetArgs(strings.Fields(args))
	return root.ExecuteContext(ctx)
}

func TestWatch(t *testing.T) {
	cluster := fakeClient(t, &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}})
	var out bytes.Buffer
	more := func() {
		if err := cluster.Create(t.Context(), &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-2"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := watching(t, &out, cluster, "nodes --watch", more); err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(out.String(), "\n\n")
	if strings.Contains(first, "gpu-2") || !strings.Contains(second, "gpu-2") || !strings.HasPrefix(second, "NAME") {
		t.Errorf("printed\n%s", out.String())
	}

	out.Reset()
	if err := watching(t, &terminal{Writer: &out, width: 12}, cluster, "nodes -w"); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.HasPrefix(text, clear+"NAME") || !strings.Contains(text, "…\n") || strings.Contains(text, red) {
		t.Errorf("on a screen: %q", text)
	}
	if err := watching(t, io.Discard, cluster, "nodes -w -o json"); err == nil || !strings.Contains(err.Error(), "--watch is for people") {
		t.Errorf("as JSON: %v", err)
	}
	if err := watching(t, io.Discard, failing{cluster, errors.New("connection refused")}, "nodes -w"); err == nil {
		t.Error("an error is not said")
	}
}

// What is longer than the screen goes on under its last column; where that leaves
// too little room it is cut.
func TestTerminal(t *testing.T) {
	const table = "NODE   HEALTH\ngpu-1  ok\ngrößer unhealthy because of this and of that\n"
	head := bold + "NODE   HEALTH" + plain + "\ngpu-1  " + green + "ok" + plain + "\ngrößer " + red + "unhealthy" + plain
	for width, want := range map[int]string{
		0:  head + " because of this and of that\n",
		30: head + " because of th\n       is and of that\n",
		24: head + " becaus…\n",
	} {
		var out bytes.Buffer
		s := &terminal{Writer: &out, width: width, colour: true}
		if _, err := s.Write([]byte(table)); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%d wide: got %q\nwant %q", width, out.String(), want)
		}
	}
	if screen(&bytes.Buffer{}) != nil {
		t.Error("a buffer is taken for a screen")
	}
}

// Every table's own header is known for one, whatever it is made of: it is bold, and no
// row is longer than the screen.
func TestTerminalKnowsItsTables(t *testing.T) {
	for _, args := range []string{"nodes", "devices", "slices -A", "waiting -A", "defrag",
		"explain --dialects all --nvidia-replicas 4 -f testdata/manifests/workloads.yaml"} {
		const width = 60
		var out bytes.Buffer
		c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, out: &terminal{Writer: &out, width: width, colour: true}, errOut: io.Discard,
			connect: func() (client.Client, error) { return fakeClient(t, fixture()...), nil }}
		root := c.root()
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		if !strings.HasPrefix(out.String(), bold) {
			t.Errorf("%s: the header is not bold:\n%s", args, out.String())
		}
		table, _, _ := strings.Cut(out.String(), "\nPod/") // remarks of explain are not fitted
		for line := range strings.Lines(table) {
			for _, code := range []string{bold, red, green, plain, "\n"} {
				line = strings.ReplaceAll(line, code, "")
			}
			if n := utf8.RuneCountInString(line); n > width && !strings.Contains(line, ": ") {
				t.Errorf("%s: %d characters on a screen of %d: %q", args, n, width, line)
			}
		}
	}
}

// Documents for machines are never fitted.
func TestTerminalLeavesDocuments(t *testing.T) {
	var out bytes.Buffer
	c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, out: &terminal{Writer: &out, width: 10, colour: true}, errOut: &out,
		connect: func() (client.Client, error) { return fakeClient(t, fixture()...), nil }}
	root := c.root()
	root.SetArgs([]string{"nodes", "-o", "json"})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out.Bytes()) || !strings.Contains(out.String(), "view.vernier.dev/v1") {
		t.Errorf("printed %s", out.String())
	}
}
