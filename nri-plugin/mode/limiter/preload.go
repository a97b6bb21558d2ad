// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"fmt"
	"os"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/preload"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// preload has the container load what its image preloads, after our library. Where
// that cannot be had the container does not start.
func (l *Limiter) preload(c mode.Container, pid uint32) error {
	if l.ImagePreload == nil {
		return nil
	}
	own := l.ImagePreload(pid)
	if len(own) == 0 {
		return nil
	}
	dir, err := l.folder(c)
	if err == nil {
		err = dir.writePreload(own)
	}
	if err != nil {
		return fmt.Errorf("adding the image's %s to the limiter's: %w; check the space on the node's state directory, or remove the file from the image", preload.Path, err)
	}
	return nil
}

// writePreload writes the file in its place: it is mounted already, and nothing of
// the container runs yet that could see it half written. Ours comes first: what it
// stands in front of it must find before any other does.
func (d folder) writePreload(image []byte) error {
	content := append([]byte(layout.LibraryPath+"\n"), image...)
	if err := os.WriteFile(d.preload(), content, 0o644); err != nil {
		return err
	}
	// Whatever the umask.
	return os.Chmod(d.preload(), 0o644)
}
