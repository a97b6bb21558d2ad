// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Use is read from the counters of that run, and not from damaged ones.
func TestUsage(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	if _, err := l.Usage(c); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before its creation: %v", err)
	}
	dir := inject(t, l, c)
	if u, err := l.Usage(c); err != nil || len(u.Devices) != len(c.Grants) {
		t.Errorf("%+v, %v", u, err)
	}
	fewer := c
	fewer.Grants = c.Grants[:1]
	if _, err := l.Usage(fewer); err == nil {
		t.Error("counters of other devices are taken for the container's")
	}
	must(t, os.Truncate(dir.counters(), 10))
	if _, err := l.Usage(c); err == nil {
		t.Error("damaged counters are read")
	}
}

// A tenant writes what it likes into its counters: figures that cannot be are not read.
func TestHostileFigures(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	dir := inject(t, l, c)
	file, err := os.OpenFile(dir.counters(), os.O_RDWR, 0)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	content, err := os.ReadFile(dir.counters())
	must(t, err)
	const headerBytes, devices = 64, 4096
	for name, damage := range map[string]func(b []byte){
		"devices": func(b []byte) { fill(b[headerBytes:devices], 0xff) },
		"all":     func(b []byte) { fill(b, 0xff) },
		"busy":    func(b []byte) { b[headerBytes+72+7] = 0x7f },
		"peak":    func(b []byte) { b[headerBytes+24+6] = 1 },
		"refused": func(b []byte) { b[headerBytes+8+7] = 1 },
	} {
		damaged := slices.Clone(content)
		damage(damaged)
		_, err := file.WriteAt(damaged, 0)
		must(t, err)
		if u, err := l.Usage(c); err == nil {
			t.Errorf("%s: read %+v", name, u)
		}
	}
	_, err = file.WriteAt(content, 0)
	must(t, err)
	if _, err := l.Usage(c); err != nil {
		t.Errorf("good counters: %v", err)
	}
	for _, size := range []int64{0, 1 << 62} {
		if err := file.Truncate(size); err != nil {
			continue
		}
		if _, err := l.Usage(c); err == nil {
			t.Errorf("counters of %d bytes are read", size)
		}
	}
}

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// A process with very many locks on its counters holds nobody up.
func TestHostileLocks(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	file, err := os.OpenFile(inject(t, l, c).counters(), os.O_RDWR, 0)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	// All slots claimed, and locks that are in the way of each question. They are of open
	// files, since a process is not asked about its own.
	claimed := make([]byte, 1024*576)
	for i := range 1024 {
		claimed[i*576] = 1
	}
	_, err = file.WriteAt([]byte{0, 4, 0, 0}, 24)
	must(t, err)
	_, err = file.WriteAt(claimed, 4096)
	must(t, err)
	for i := range int64(10000) {
		lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 1<<40 + 2*i, Len: 1}
		must(t, unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock))
	}
	began := time.Now()
	_, err = l.Usage(c)
	if took := time.Since(began); err == nil && took > 10*time.Second || took > time.Minute {
		t.Errorf("it took %v: %v", took, err)
	} else {
		t.Logf("%v: %v", took, err)
	}
}
