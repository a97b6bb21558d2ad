// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// proc makes a procfs with a mount table and the cgroups of process 7.
func proc(t *testing.T, mounts, cgroups string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"self/mountinfo": mounts, "7/cgroup": cgroups} {
		path := filepath.Join(dir, name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	}
	return dir
}

const (
	unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
	hybrid  = "30 24 0:25 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs rw\n" +
		"31 30 0:26 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n" +
		"32 30 0:27 / /sys/fs/cgroup/unified rw shared:11 - cgroup2 cgroup2 rw\n"
	legacy = "31 30 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	id     = "3f2a"
)

func TestLeaf(t *testing.T) {
	cases := map[string]struct {
		mounts, cgroups string
		want            string
		err             error
	}{
		"v2, systemd": {unified, "0::/kubepods.slice/pod1.slice/cri-containerd-3f2a.scope\n",
			"/sys/fs/cgroup/kubepods.slice/pod1.slice/cri-containerd-3f2a.scope", nil},
		"v2, cgroupfs":                        {unified, "0::/kubepods/pod1/3f2a\n", "/sys/fs/cgroup/kubepods/pod1/3f2a", nil},
		"hybrid":                              {hybrid, "4:memory:/kubepods/3f2a\n0::/kubepods/3f2a\n", "/sys/fs/cgroup/unified/kubepods/3f2a", nil},
		"in the root of the hybrid hierarchy": {hybrid, "4:memory:/kubepods/3f2a\n0::/\n", "", ErrNone},
		"in its pod's":                        {unified, "0::/kubepods/3f2a/shared\n", "", ErrNone},
		"in none":                             {hybrid, "4:memory:/kubepods/3f2a\n", "", ErrNone},
	}
	for name, c := range cases {
		f := must.Get(New(proc(t, c.mounts, c.cgroups)))(t)
		if got, err := f.Leaf(7, id); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.err)
		}
	}
}

func TestLeafOfNobody(t *testing.T) {
	f := must.Get(New(proc(t, unified, "0::/kubepods/3f2a\n")))(t)
	if _, err := f.Leaf(8, id); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("a process that is gone: %v", err)
	}
	if _, err := f.Leaf(7, ""); !errors.Is(err, ErrNone) {
		t.Errorf("a container without id: %v", err)
	}
}

func TestNoV2(t *testing.T) {
	if _, err := New(proc(t, legacy, "")); err == nil || !strings.Contains(err.Error(), "no cgroup v2") {
		t.Errorf("%v", err)
	}
}
