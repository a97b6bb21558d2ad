// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"os"
	"strings"
	"testing"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// What the image preloads is loaded after our library, from the very file that is
// mounted; what cannot be found out is said, and what cannot be had fails.
func TestImagePreload(t *testing.T) {
	const ours = layout.LibraryPath + "\n"
	for name, c := range map[string]struct {
		own            string
		err            error
		prepare        func(*testing.T, folder)
		want, note, is string
	}{
		"none":    {want: ours},
		"its own": {own: "/lib/own.so\n", want: ours + "/lib/own.so\n"},
		"unknown": {err: errors.New("no table"), want: ours, note: "hidden: no table"},
		"cannot be written": {own: "/lib/own.so\n", prepare: func(t *testing.T, dir folder) {
			must(t, os.Remove(dir.preload()))
			must(t, os.Mkdir(dir.preload(), 0o755))
		}, is: "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, t.TempDir(), cooperative())
			l.ImagePreload = func(pid uint32) ([]byte, error) {
				if pid != 7 {
					t.Errorf("asked about process %d", pid)
				}
				if c.own == "" {
					return nil, c.err
				}
				return []byte(c.own), c.err
			}
			dir := inject(t, l, container("1"))
			mounted := stat(t, dir.preload())
			if c.prepare != nil {
				c.prepare(t, dir)
			}
			all, err := l.Apply(container("1"), 7)
			if c.is != "" {
				if err == nil || !strings.Contains(err.Error(), c.is) {
					t.Errorf("Invariant 2: %v, want %q", err, c.is)
				}
				return
			}
			if err != nil || !strings.Contains(all[0].Note, c.note) || c.note == "" && strings.Contains(all[0].Note, "hidden") {
				t.Errorf("%+v, %v; want %q", all, err, c.note)
			}
			got, err := os.ReadFile(dir.preload())
			if now := stat(t, dir.preload()); err != nil || string(got) != c.want || !os.SameFile(mounted, now) || now.Mode().Perm() != 0o644 {
				t.Errorf("%q %v, %v; want %q in the file that is mounted", got, now.Mode(), err, c.want)
			}
		})
	}
}
