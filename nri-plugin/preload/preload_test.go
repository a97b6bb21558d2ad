// SPDX-License-Identifier: Apache-2.0

package preload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
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
	must.Do(n.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)))
}

func (n *node) dir(path string) {
	n.t.Helper()
	must.Do(n.t, os.MkdirAll(filepath.Join(n.host, path), 0o755))
}

func (n *node) link(target, path string) {
	n.t.Helper()
	must.Do(n.t, os.Symlink(target, filepath.Join(n.host, path)))
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

// An image whose content never comes, on a real file system in user space as lazy snapshotters
// mount: every question is answered, no more than a few reads are left behind, and containers
// of ordinary images are not concerned.
func TestHostileLazyImage(t *testing.T) {
	n := newNode(t, "fuse", "rw")
	n.patience = 20 * time.Millisecond
	release := hang(t, filepath.Join(n.host, rootfs))
	for i := range 2 * maxReads {
		want := "does not answer"
		if i >= maxReads {
			want = "are waited for already"
		}
		if got, err := n.Own(first); got != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("read %d: %q, %v; want %q", i, got, err, want)
		}
	}
	// The answer for nearly every image waits for no place.
	ordinary := newNode(t, "overlay", overlay)
	ordinary.reads = n.reads
	ordinary.write(filepath.Join(ordinary.host, layer, Path), "")
	if got, err := ordinary.Own(first); got != nil || err != nil {
		t.Errorf("an image without the file: %q, %v", got, err)
	}

	// Once they come back there is room again.
	release()
	const content = "/usr/lib/libown.so\n"
	own := newNode(t, "ext4", "rw")
	own.reads = n.reads
	own.write(filepath.Join(own.host, rootfs, Path), content)
	for range maxReads {
		n.reads <- struct{}{} // waits for each that was left behind
	}
	for range maxReads {
		<-n.reads
	}
	if got, err := own.Own(first); string(got) != content || err != nil {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// hang mounts a file system with the file, which answers everything but what is in the file.
// What it returns ends it, and with it all that waits.
func hang(t *testing.T, at string) func() {
	t.Helper()
	// Blocking: the runtime's poller reports more than there is to read.
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("lazy", at, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skip("no file systems in user space here: ", err)
	}
	must.Do(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(fd)
	}()
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		// By force: every request fails, and so does the reader.
		if err := unix.Unmount(at, unix.MNT_FORCE); err != nil && !errors.Is(err, unix.EBUSY) {
			t.Error(err)
		}
		<-served
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // it may be gone already
			t.Error(err)
		}
		must.Report(t, unix.Close(fd))
	}
	t.Cleanup(end)
	return end
}

// Requests of the kernel's protocol (linux/fuse.h).
const (
	opLookup  = 1
	opGetattr = 3
	opOpen    = 14
	opRead    = 15
	opInit    = 26
)

// serve answers until the connection ends.
func serve(fd int) {
	le := binary.LittleEndian
	attr := func(node uint64) []byte {
		b := make([]byte, 88)
		mode := uint32(unix.S_IFDIR | 0o755)
		if node == 3 {
			mode = unix.S_IFREG | 0o644
			le.PutUint64(b[8:], 10) // its size
		}
		le.PutUint64(b, node)
		le.PutUint32(b[60:], mode)
		le.PutUint32(b[64:], 1)
		return b
	}
	request := make([]byte, 1<<17)
	for {
		got, err := unix.Read(fd, request)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil || got < 40 {
			return
		}
		node := le.Uint64(request[16:])
		var reply []byte
		var failure int32
		switch le.Uint32(request[4:]) {
		case opInit:
			reply = make([]byte, 64)
			le.PutUint32(reply, 7)
			le.PutUint32(reply[4:], 31)
			le.PutUint32(reply[20:], 1<<12)
		case opLookup:
			name := strings.TrimRight(string(request[40:got]), "\x00")
			if node == 1 && name != "etc" || node == 2 && name != "ld.so.preload" || node > 2 {
				failure = -int32(unix.ENOENT)
				break
			}
			reply = make([]byte, 40)
			le.PutUint64(reply, node+1)
			reply = append(reply, attr(node+1)...)
		case opGetattr:
			reply = append(make([]byte, 16), attr(node)...)
		case opOpen:
			reply = make([]byte, 16)
		case opRead, 2, 36, 42: // what the registry never sends; and what wants no answer
			continue
		default:
			failure = -int32(unix.ENOSYS)
		}
		answer := make([]byte, 16, 16+len(reply))
		le.PutUint32(answer, uint32(16+len(reply)))
		le.PutUint32(answer[4:], uint32(failure))
		copy(answer[8:], request[8:16])
		if _, err := unix.Write(fd, append(answer, reply...)); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
	}
}
