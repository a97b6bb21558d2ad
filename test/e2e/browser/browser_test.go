// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package browser owns what must hold of the page in a real browser, for a fleet of
// thousands of GPUs: that it can be used, and by keyboard alone. No cluster is needed.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/test/must"
)

// patience bounds every wait.
const patience = 90 * time.Second

// tab is a browser with one page, told what to do over a pipe in the protocol of its
// developer tools.
type tab struct {
	t       testing.TB
	to      *os.File
	from    *bufio.Reader
	session string
	last    int
}

// open starts a browser that ends with the test.
func open(t testing.TB) *tab {
	t.Helper()
	program, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Fatalf("%v; remedy: test/deps.sh chromium-headless-shell fonts-dejavu-core", err)
	}
	in, to, err1 := os.Pipe()
	from, out, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	cmd := exec.Command(program, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--user-data-dir="+t.TempDir(), "--window-size=1280,900", "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{in, out} // 3 and 4, as it wants them
	must.Do(t, cmd.Start())
	in.Close()
	out.Close()
	b := &tab{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		b.call("Browser.close", nil, nil)
		to.Close()
		if err := cmd.Wait(); err != nil {
			t.Log(err)
		}
		from.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	b.call("Page.enable", nil, nil)
	return b
}

// call sends a command and waits for its result; events are passed over.
func (b *tab) call(method string, params, result any) {
	b.t.Helper()
	b.last++
	if params == nil {
		params = struct{}{}
	}
	text, err := json.Marshal(map[string]any{"id": b.last, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		text, err = json.Marshal(map[string]any{"id": b.last, "method": method, "params": params})
	}
	must.Do(b.t, err)
	must.Get(b.to.Write(append(text, 0)))(b.t)
	for {
		line, err := b.from.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		var answer struct {
			ID     int
			Error  *struct{ Message string }
			Result json.RawMessage
		}
		must.Do(b.t, json.Unmarshal(line[:len(line)-1], &answer))
		if answer.ID != b.last {
			continue
		}
		if answer.Error != nil {
			b.t.Fatalf("%s: %s", method, answer.Error.Message)
		}
		if result != nil {
			must.Do(b.t, json.Unmarshal(answer.Result, result))
		}
		return
	}
}

func (b *tab) visit(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
}

// eval is an expression's value in the page; what is promised is waited for. While the
// page is exchanged for another one there is none.
func (b *tab) eval(expression string) (value any) {
	b.t.Helper()
	var answer struct{ Result struct{ Value any } }
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	return answer.Result.Value
}

// await waits until an expression has a value.
func (b *tab) await(expression string, want any) {
	b.t.Helper()
	var last any
	err := wait.PollUntilContextTimeout(b.t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = b.eval(expression)
		return fmt.Sprint(last) == fmt.Sprint(want), nil
	})
	if err != nil {
		b.t.Fatalf("waited in vain: %s is %v, want %v", expression, last, want)
	}
}

// focus puts the focus on what a selector finds, as soon as it is there.
func (b *tab) focus(selector string) {
	b.t.Helper()
	b.await(fmt.Sprintf("(e => !!e && (e.focus(), document.activeElement === e))(document.querySelector(%q))", selector), true)
}

// keys are those that have no character.
var keys = map[string]int{"Tab": 9, "Enter": 13, "ArrowDown": 40}

// press presses keys, one after the other.
func (b *tab) press(names ...string) {
	b.t.Helper()
	for _, name := range names {
		down := map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": keys[name]}
		if name == "Enter" {
			down["text"] = "\r"
		}
		b.call("Input.dispatchKeyEvent", down, nil)
		b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": keys[name]}, nil)
	}
}

// write types text where the focus is.
func (b *tab) write(text string) {
	b.t.Helper()
	b.call("Input.insertText", map[string]any{"text": text}, nil)
}
