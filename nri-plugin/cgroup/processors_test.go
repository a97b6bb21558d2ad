// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

const stat = `cpu  100 20 30 4000 500 6 7 8 90 10
cpu0 50 10 15 2000 250 3 3 4 45 5
cpu1 50 10 15 2000 250 3 4 4 45 5
intr 1 2 3
btime 1700000000
`

func TestNode(t *testing.T) {
	dir := proc(t, unified, "")
	p := must.Get(NewProcessors(dir))(t)
	for text, want := range map[string]Load{
		stat:                                  {CPUs: 2, Busy: 171, All: 4671},
		"cpu  1 2":                            {},
		"":                                    {},
		strings.Replace(stat, "4000", "x", 1): {},
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600))
		if got, err := p.Node(); got != want || (err != nil) != (want == Load{}) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// The processor time of a container, wherever its hierarchy counts it.
func TestContainerTime(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"unified/pod/3f2a/cpu.stat":      "usage_usec 1500000\nuser_usec 1\n",
		"unified/pod/3f2a/cpu.pressure":  "some avg10=1.50 avg60=0.00 avg300=0.00 total=250000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
		"cpuacct/pod/3f2a/cpuacct.usage": "2500000000\n",
	} {
		path := filepath.Join(root, name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	}
	v2 := "32 30 0:27 / " + root + "/unified rw - cgroup2 cgroup2 rw\n"
	v1 := "31 30 0:26 / " + root + "/cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	const in1, in2 = "4:cpu,cpuacct:/pod/3f2a\n", "0::/pod/3f2a\n"
	for name, c := range map[string]struct {
		mounts, cgroups string
		v2              bool
		want            time.Duration
	}{
		"v2":                                  {v2, in2, true, 1500 * time.Millisecond},
		"hybrid, the container is in both":    {v1 + v2, in1 + in2, false, 1500 * time.Millisecond},
		"hybrid, the container is in v1":      {v1 + v2, in1 + "0::/\n", false, 2500 * time.Millisecond},
		"v1":                                  {v1, in1, false, 2500 * time.Millisecond},
		"v1, in a directory with others":      {v1, "4:cpu,cpuacct:/pod\n", false, 0},
		"v1, the controller is not mounted":   {"", in1, false, 0},
		"v2, it is being removed":             {v2, "0::/pod/3f2a-gone\n", true, 0},
		"v1, it is being removed":             {v1, "4:cpuacct:/pod/3f2a-gone\n", false, 0},
		"v2, in the pod's and not in its own": {v2, "0::/pod\n", true, 0},
	} {
		p := must.Get(NewProcessors(proc(t, c.mounts, c.cgroups)))(t)
		if p.V2() != c.v2 {
			t.Errorf("%s: V2 is %t", name, p.V2())
		}
		if got, err := p.Container(7, id); got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
		// Only what is in the v2 hierarchy has any.
		waited, err := p.Pressure(7, id)
		if in := strings.HasSuffix(c.cgroups, in2) && c.mounts != v1; (err == nil) != in || in && waited != 250*time.Millisecond {
			t.Errorf("%s: waited %v, %v", name, waited, err)
		}
	}
}

// The CPUs of a sandbox's pod, in the directory above its own.
func TestPodCPUs(t *testing.T) {
	root := t.TempDir()
	own := filepath.Join(root, "kubepods/pod9/cpuset.effective_cpus")
	must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(own), 0o755), os.WriteFile(own, []byte("7\n"), 0o600)))
	v1 := "31 30 0:26 / " + root + " rw - cgroup cgroup rw,cpuset\n"
	for name, c := range map[string]struct{ mounts, cgroups, text, want string }{
		"cgroupfs":                {v1, "5:cpuset:/kubepods/pod1/3f2a\n", "0-1,5\n", "0-1,5"},
		"systemd":                 {v1, "5:cpuset:/kubepods/pod1/cri-containerd-3f2a.scope\n", "2\n", "2"},
		"it is seen here":         {v1, "5:cpuset:/kubepods/pod9/3f2a\n", "2\n", "7"},
		"of another container":    {v1, "5:cpuset:/kubepods/pod1/other\n", "2\n", ""},
		"not in v1":               {v1, "0::/kubepods/pod1/3f2a\n", "2\n", ""},
		"not mounted":             {unified, "5:cpuset:/kubepods/pod1/3f2a\n", "2\n", ""},
		"elsewhere on the node":   {v1, "5:cpuset:/kubepods/pod2/3f2a\n", "2\n", ""},
		"a text that is not CPUs": {v1, "5:cpuset:/kubepods/pod1/3f2a\n", "all\n", ""},
	} {
		dir := proc(t, c.mounts, c.cgroups)
		file := filepath.Join(dir, "1/root", root, "kubepods/pod1/cpuset.effective_cpus")
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(c.text), 0o600)))
		p := must.Get(NewProcessors(dir))(t)
		if got, err := p.PodCPUs(7, id); got.String() != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %v, %v; want %q", name, got, err, c.want)
		}
	}
}

// A kernel without PSI, or with another text, says nothing, which is not 0.
func TestPressureUnknown(t *testing.T) {
	root := t.TempDir()
	p := must.Get(NewProcessors(proc(t, "32 30 0:27 / "+root+" rw - cgroup2 cgroup2 rw\n", "0::/3f2a\n")))(t)
	must.Do(t, os.Mkdir(filepath.Join(root, id), 0o755))
	for _, text := range []string{"absent", "", "full avg10=0.00 total=7\n", "some avg10=0.00\n", "some total=x\n"} {
		if text != "absent" {
			must.Do(t, os.WriteFile(filepath.Join(root, id, "cpu.pressure"), []byte(text), 0o600))
		}
		if waited, err := p.Pressure(7, id); err == nil {
			t.Errorf("%q: %v", text, waited)
		}
	}
}
