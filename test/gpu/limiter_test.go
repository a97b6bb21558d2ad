// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// limit is the share of the test's program.
const limit v1alpha1.MiB = 512

// The library that ships, installed as in a container, holds a program on the
// driver's own libcuda to its share, and shows it the share as the device.
func TestLimiter(t *testing.T) {
	if os.Geteuid() != 0 {
		withoutRoot(t)
	}
	m, _, _, now := look(t)
	usable := now.Usable()
	if len(usable) == 0 {
		t.Fatalf("no device is healthy and out of MIG mode: %+v", now.Devices)
	}
	d := usable[0]
	p := program{dir: t.TempDir(), env: append(m.env, "CUDA_VISIBLE_DEVICES="+d.UUID)}
	p.install(t, d.UUID)

	// Without the library a program's own view of the device is what shares are
	// cut from.
	out, code := p.run(t, false)
	whole := field(out, "total_mib=")
	t.Logf("NVML: %d MiB can be used; CUDA: %d MiB in all", d.Mem, whole)
	if code != 0 || field(out, "device index=") != 0 || !near(v1alpha1.MiB(whole), d.Mem) {
		t.Fatalf("without the library, exit %d, want about %d MiB:\n%s", code, d.Mem, out)
	}
	for _, c := range []struct {
		alloc v1alpha1.MiB
		code  int
		text  string
	}{
		{limit / 2, 0, fmt.Sprintf("allocated mib=%d free_mib=%d", limit/2, limit/2)},
		{limit + 1, 4, "error=CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		out, code := p.run(t, true, "--alloc", strconv.Itoa(int(c.alloc)))
		if code != c.code || !strings.Contains(out, c.text) || field(out, "total_mib=") != uint64(limit) {
			t.Errorf("allocating %d of %d MiB: exit %d, want %d and %q:\n%s", c.alloc, limit, code, c.code, c.text, out)
		}
	}
}

// program is the CUDA demo with a container's files around it.
type program struct {
	dir  string
	demo string
	env  []string
}

func (p *program) install(t *testing.T, uuid string) {
	t.Helper()
	root := must.Get(manifests.Root())(t)
	out, err := exec.Command("make", "-s", "-C", filepath.Join(root, "vgpu-limiter"), "OUT="+p.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("building libvgpu.so: %v\n%s", err, out)
	}
	bin := must.Get(simgpu.Build(""))(t)
	p.demo = filepath.Join(bin, "cudademo")
	limits := layout.Limits{Container: "test/gpu", Devices: []layout.DeviceLimit{{UUID: uuid, MemoryBytes: limit.Bytes()}}}
	must.Do(t, layout.WriteFile(filepath.Join(p.dir, "limits"), limits))
	must.Do(t, layout.CreateCounters(filepath.Join(p.dir, "counters"), 1))
}

// installed puts the files where the library looks for them. It runs in a mount
// namespace of its own, which is gone with it.
var installed = strings.NewReplacer("FOLDER", layout.Folder, "COUNTERS", layout.CountersPath, "LIBRARY", layout.LibraryPath).Replace(`
mkdir etc
cp -a /etc/. etc
mount --bind etc /etc
mount -t tmpfs none /usr/local
mkdir FOLDER
mount --bind . FOLDER
mount -o remount,bind,ro FOLDER
mount --bind counters COUNTERS
echo LIBRARY >/etc/ld.so.preload
exec "$@"
`)

func (p *program) run(t *testing.T, limited bool, args ...string) (out string, code int) {
	t.Helper()
	argv := append([]string{p.demo}, args...)
	if limited {
		argv = append([]string{"unshare", "--mount", "sh", "-euc", installed, "sh"}, argv...)
	}
	must.Do(t, os.RemoveAll(filepath.Join(p.dir, "etc")))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// field is the first number after a key in the program's output; 0 if it has none.
func field(out, key string) uint64 {
	_, rest, _ := strings.Cut(out, key)
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.ParseUint(rest[:max(end, 0)], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
