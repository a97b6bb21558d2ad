// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Resize changes the limits of a session in dir that runs. It is named by the PID of its
// vgpu-run, or by its folder. The function is given what is in force, and returns what is
// to be of one device.
func Resize(dir, name string, change func(inForce layout.Limits) (layout.DeviceLimit, error)) error {
	path, err := find(dir, name)
	if err != nil {
		return err
	}
	alone, err := os.OpenFile(filepath.Join(path, resizeName), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = alone.Close() }()
	if err := unix.Flock(int(alone.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another vgpu-run resize of session %s is under way: %w; try again", filepath.Base(path), err)
	}
	limits, counters, pace := filepath.Join(path, limitsName), filepath.Join(path, countersName), filepath.Join(path, paceName)
	inForce, err := layout.InForce(limits, pace)
	if err != nil {
		return err
	}
	to, err := change(inForce)
	if err != nil {
		return err
	}
	return layout.Resize(limits, counters, pace, to)
}

// find is the path of a session that runs.
func find(dir, name string) (string, error) {
	paths, err := sessions(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var running []string
	for _, path := range paths {
		if f, err := lock(path); err == nil {
			_ = f.Close()
			continue // it has ended
		}
		base := filepath.Base(path)
		if base == name || strings.HasPrefix(base, name+"-") {
			return path, nil
		}
		running = append(running, base)
	}
	if len(running) == 0 {
		return "", fmt.Errorf("no vgpu-run runs in %s; --run-dir names another folder", dir)
	}
	return "", fmt.Errorf("no vgpu-run %s in %s; there are %s, each by the PID of its vgpu-run", name, dir, strings.Join(running, ", "))
}
