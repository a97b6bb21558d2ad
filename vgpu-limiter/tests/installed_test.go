// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstalled puts the library that ships where the node agent puts it, in a
// mount namespace of its own: nothing that a tenant does to its environment or
// to the files changes what it may use.
func TestInstalled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a mount namespace")
	}
	c := newContainer(t, share{0, 100})
	script := `
mkdir etc vernier
cp -a /etc/. etc
mount --bind etc /etc
mount -t tmpfs none /usr/local
mkdir /usr/local/vernier folder
cp "$LIBRARY" folder/libvgpu.so
mv limits counters folder
mount --bind folder /usr/local/vernier
mount -o remount,bind,ro /usr/local/vernier
mount --bind folder/counters /usr/local/vernier/counters
echo /usr/local/vernier/libvgpu.so >/etc/ld.so.preload
calls() { printf 'init\nprimary 0 0\ncurrent 0\ntotal 0\nalloc 1 101\nalloc 1 100\n' | "$@" "$CALLS"; }
calls env
calls env -i SIMGPU_STATE="$SIMGPU_STATE" SIMGPU_ALL_DEVICES=1 LD_LIBRARY_PATH="$LD_LIBRARY_PATH"
calls env LD_PRELOAD= VERNIER_DISABLE=1
! rm -f /usr/local/vernier/limits /usr/local/vernier/counters /usr/local/vernier/libvgpu.so 2>/dev/null
! sh -c 'echo >/usr/local/vernier/limits' 2>/dev/null
! sh -c 'echo >/usr/local/vernier/libvgpu.so' 2>/dev/null
! touch /usr/local/vernier/more 2>/dev/null
calls env
`
	cmd := exec.Command("unshare", "--mount", "sh", "-euc", script)
	cmd.Dir = c.dir
	cmd.Env = append(c.native(), "LIBRARY="+filepath.Join(c.built.dir, "libvgpu.so"), "CALLS="+filepath.Join(c.built.dir, "calls"))
	out, err := cmd.CombinedOutput()
	want := strings.Repeat("init 0\nprimary 0\ncurrent 0\ntotal 0 104857600\nalloc 2\nalloc 0\n", 4)
	if err != nil || string(out) != want {
		t.Errorf("%v\n%swant\n%s", err, out, want)
	}
}
