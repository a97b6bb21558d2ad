// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"vernier.dev/vernier/test/cluster/image"
)

// Images that every node has from the start.
const (
	// PauseImage keeps a pod's namespaces.
	PauseImage = "vernier.local/pause:1"
	// BusyboxImage has a shell and small tools, and sleeps until it is told to end.
	BusyboxImage = "vernier.local/busybox:1"
)

var baseImages = []string{PauseImage, BusyboxImage}

func (c *Cluster) imageFile(name string) string {
	return filepath.Join(c.state.Dir, "images", strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
}

func (c *Cluster) writeImages() error {
	pause := &image.Image{Name: PauseImage, Entrypoint: []string{"/pause"}}
	if err := pause.AddFile("/pause", c.tools.pause); err != nil {
		return err
	}
	if err := pause.Save(c.imageFile(PauseImage)); err != nil {
		return err
	}
	busybox, err := Busybox(BusyboxImage)
	if err != nil {
		return err
	}
	return busybox.Save(c.imageFile(BusyboxImage))
}

// Busybox is an image with this machine's busybox as every tool that a test's
// script needs. It is also the ground for images with other programs.
func Busybox(name string) (*image.Image, error) {
	file, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install -y busybox-static", err)
	}
	// As process 1 a shell ignores SIGTERM unless it handles it.
	m := &image.Image{Name: name, Cmd: []string{"/bin/sh", "-c", "trap exit TERM; while :; do sleep 3600 & wait $!; done"}}
	if err := m.AddProgram("/bin/busybox", file); err != nil {
		return nil, err
	}
	for _, tool := range []string{"cat", "date", "echo", "env", "grep", "hostname", "httpd", "id", "ip", "kill", "ls", "mkdir", "mount",
		"nc", "ping", "ps", "readlink", "rm", "sh", "sleep", "stat", "test", "touch", "true", "false", "wc", "wget", "yes", "head", "tail", "timeout"} {
		m.Link("/bin/"+tool, "busybox")
	}
	m.Dir("/tmp", 0o777)
	return m, nil
}
