// SPDX-License-Identifier: Apache-2.0

package preload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	// The container's first process, and the runtime's that looks after it.
	first, shim = 100, 50
	rootfs      = "/run/task/1/rootfs"
	layer       = "/snapshots/7/fs"
)

// node is a procfs with those two processes. What is below it is the host's.
type node struct {
	*Image
	t    testing.TB
	host string
}

// newNode has a container whose root is mounted with those options.
func newNode(t testing.TB, fstype, options string) *node {
	n := &node{Image: New(t.TempDir()), t: t}
	n.Image.patience = time.Minute
	n.host = filepath.Join(n.proc, fmt.Sprint(shim), "root")
	n.write(filepath.Join(n.proc, "100/stat"), fmt.Sprintf("%d (runc) init) S %d%s\n", first, shim, strings.Repeat(" 0", 48)))
	n.write(filepath.Join(n.proc, "100/mountinfo"), strings.Join([]string{
		"501 500 0:60 / /proc rw - proc proc rw",
		"500 400 0:52 / / rw,relatime - " + fstype + " " + fstype + " " + options,
		"502 500 8:1 /state/ld.so.preload /etc/ld.so.preload ro - ext4 /dev/sda1 rw", ""}, "\n"))
	n.write(filepath.Join(n.proc, "50/mountinfo"), strings.Join([]string{
		"20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw",
		"30 20 0:51 / /run/task/2/rootfs rw - overlay overlay rw",
		"29 20 0:52 /etc /run/etc-of-that rw - " + fstype + " " + fstype + " " + options,
		"31 20 0:52 / " + rootfs + " rw shared:9 - " + fstype + " " + fstype + " " + options, ""}, "\n"))
	n.dir(rootfs + "/etc")
	n.dir(layer)
	return n
}

func (n *node) write(path, content string) {
	n.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) dir(path string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Join(n.host, path), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) link(target, path string) {
	n.t.Helper()
	if err := os.Symlink(target, filepath.Join(n.host, path)); err != nil {
		n.t.Fatal(err)
	}
}

const overlay = "rw,lowerdir=/snapshots/6/fs,upperdir=" + layer + ",workdir=/snapshots/7/work"

func TestOwn(t *testing.T) {
	const content = "/usr/lib/libown.so # the image's\n"
	for name, c := range map[string]struct {
		fstype, options string
		lay             func(*node)
		want, err       string
	}{
		"none": {"overlay", overlay, func(n *node) {
			n.write(filepath.Join(n.host, layer, Path), "")
			// Not looked at: the layer's answer is enough.
			n.write(filepath.Join(n.host, rootfs, Path), content)
		}, "", ""},
		"its own":             {"overlay", overlay, func(n *node) { n.write(filepath.Join(n.host, rootfs, Path), content) }, content, ""},
		"empty, in the image": {"overlay", overlay, func(n *node) { n.write(filepath.Join(n.host, rootfs, Path), "") }, "", ""},
		"no overlay":          {"ext4", "rw", func(n *node) { n.write(filepath.Join(n.host, rootfs, Path), content) }, content, ""},
		"no overlay, none":    {"ext4", "rw", func(*node) {}, "", ""},
		"escaped layer":       {"overlay", `rw,upperdir=/snap\040shots/7/fs`, func(n *node) { n.write(filepath.Join(n.host, rootfs, Path), content) }, content, ""},
		"link within the image": {"overlay", overlay, func(n *node) {
			n.write(filepath.Join(n.host, rootfs, "opt/list"), content)
			n.link("/opt/list", rootfs+Path)
		}, content, ""},
		"link out of the image": {"overlay", overlay, func(n *node) {
			n.write(filepath.Join(n.host, "secret"), content)
			n.link("../../../../../secret", rootfs+Path)
		}, "", ""},
		"folder of that name":    {"overlay", overlay, func(n *node) { n.dir(rootfs + Path) }, "", ""},
		"too long":               {"overlay", overlay, func(n *node) { n.write(filepath.Join(n.host, rootfs, Path), strings.Repeat("#", maxBytes+1)) }, "", "no list of libraries"},
		"root not to be found":   {"overlay", overlay, func(n *node) { n.write(filepath.Join(n.proc, "50/mountinfo"), "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n") }, "", "not in its mount table"},
		"process gone":           {"overlay", overlay, func(n *node) { os.RemoveAll(filepath.Join(n.proc, "100")) }, "", "no such file"},
		"runtime's process gone": {"overlay", overlay, func(n *node) { os.RemoveAll(filepath.Join(n.proc, "50")) }, "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.fstype, c.options)
			c.lay(n)
			got, err := n.Own(first)
			if string(got) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q, %v; want %q, %q", got, err, c.want, c.err)
			}
		})
	}
}

// What StartContainer waits for: an image without the file, as nearly all, and one
// with it.
func BenchmarkOwn(b *testing.B) {
	for name, content := range map[string]string{"none": "", "its own": "/usr/lib/libown.so\n"} {
		b.Run(name, func(b *testing.B) {
			n := newNode(b, "overlay", overlay)
			if content == "" {
				n.write(filepath.Join(n.host, layer, Path), "")
			} else {
				n.write(filepath.Join(n.host, rootfs, Path), content)
			}
			for b.Loop() {
				if got, err := n.Own(first); err != nil || string(got) != content {
					b.Fatal(string(got), err)
				}
			}
		})
	}
}
