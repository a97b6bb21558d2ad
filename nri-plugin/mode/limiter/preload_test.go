// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"os"
	"strings"
	"testing"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// What the image preloads is loaded after our library, from the very file that is
// mounted; where that cannot be had the container does not start.
func TestImagePreload(t *testing.T) {
	const ours = layout.LibraryPath + "\n"
	for name, c := range map[string]struct {
		own      string
		prepare  func(*testing.T, folder)
		want, is string
	}{
		"none":    {want: ours},
		"its own": {own: "/lib/own.so\n", want: ours + "/lib/own.so\n"},
		"cannot be written": {own: "/lib/own.so\n", prepare: func(t *testing.T, dir folder) {
			must(t, os.Remove(dir.preload()))
			must(t, os.Mkdir(dir.preload(), 0o755))
		}, is: "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, t.TempDir(), cooperative())
			l.ImagePreload = func(pid uint32) []byte {
				if pid != 7 {
					t.Errorf("asked about process %d", pid)
				}
				return []byte(c.own)
			}
			dir := inject(t, l, container("1"))
			mounted := stat(t, dir.preload())
			if c.prepare != nil {
				c.prepare(t, dir)
			}
			_, err := l.Apply(container("1"), 7)
			if c.is != "" {
				if err == nil || !strings.Contains(err.Error(), c.is) {
					t.Errorf("Invariant 2: %v, want %q", err, c.is)
				}
				return
			}
			must(t, err)
			got, err := os.ReadFile(dir.preload())
			if now := stat(t, dir.preload()); err != nil || string(got) != c.want || !os.SameFile(mounted, now) || now.Mode().Perm() != 0o644 {
				t.Errorf("%q %v, %v; want %q in the file that is mounted", got, now.Mode(), err, c.want)
			}
		})
	}
}
