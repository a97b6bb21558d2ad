// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const module = "vernier.dev/vernier"

// Build compiles the libraries and programs into out, or into bin/simgpu of the
// module when out is empty, and returns that folder. What is up to date is left
// alone; builds of several processes into one folder wait for each other. It
// needs make, gcc and the go command.
func Build(out string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	if out == "" {
		out = filepath.Join(root, "bin", "simgpu")
	}
	if out, err = filepath.Abs(out); err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(out, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	cmd := exec.Command("make", "-s", "-C", filepath.Join(root, "test", "simgpu"), "OUT="+out)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the simulated GPU (make and gcc are needed): %w\n%s", err, text)
	}
	return out, nil
}

// moduleRoot asks the go command, because paths in the binary are trimmed.
func moduleRoot() (string, error) {
	text, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("find the folder of module %s (run inside it): %w", module, err)
	}
	return strings.TrimSpace(string(text)), nil
}
