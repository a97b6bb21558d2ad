// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// files are the mode's files on the node:
//
//	dir/<device>/state.json   the device's UUID, and its compute mode before we came
//	dir/<device>/pipe, log    the daemon's own
//	dir/<device>/clients      what a container sees as Folder: a link to the socket
//	                          that clients need, and to no other, and /dev/null as
//	                          log; with protocol 3 a folder in there for each namespace
//	dir/<device>/shm          a tmpfs: what the daemon and containers have as /dev/shm
//	dir/given/<container>     the slice that a container was given
//
// A device's folder is made before anything is done to the device and removed after
// everything is undone: whatever step a crash comes at, the next agent goes on from
// there. Its name is short, for a socket's path has 107 bytes at most.
type files struct{ dir string }

// state of a device before its first slice in this mode, and the protocol that its
// daemon was started with; the legacy one where there is none.
type state struct {
	UUID     string             `json:"uuid"`
	Mode     device.ComputeMode `json:"computeMode"`
	Protocol int                `json:"protocol,omitempty"`
}

const (
	stateFile   = "state.json"
	givenFolder = "given"
	// nameLength takes in the first group of a UUID's digits.
	nameLength = len("GPU-01234567")
)

func (f files) folder(uuid string) string {
	return filepath.Join(f.dir, uuid[:min(len(uuid), nameLength)])
}

// clients is what those of a namespace see.
func (f files) clients(uuid, space string) string {
	return filepath.Join(f.folder(uuid), "clients", space)
}

// state of a device that is ours.
func (f files) state(uuid string) (state, bool) {
	s, err := readState(f.folder(uuid))
	return s, err == nil && s.UUID == uuid
}

func readState(folder string) (s state, err error) {
	text, err := os.ReadFile(filepath.Join(folder, stateFile))
	switch {
	case err != nil:
		return s, err
	case len(text) == 0:
		// What a power cut leaves of a file that was just written; with it the daemon went,
		// and the compute mode that we had set.
		return s, fs.ErrNotExist
	}
	return s, json.Unmarshal(text, &s)
}

// enter writes down what the device was, unless it is written down.
func (f files) enter(s state) error {
	folder := f.folder(s.UUID)
	switch was, err := readState(folder); {
	case err == nil && was.UUID != s.UUID:
		return fmt.Errorf("its folder %s is that of device %s", folder, was.UUID)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	for _, dir := range []string{pipes(folder), filepath.Join(folder, "log"), f.clients(s.UUID, "")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return f.write(s)
}

func (f files) write(s state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(f.folder(s.UUID), stateFile), bytes.NewReader(text), 0o600)
}

// strike removes the device's folder, in which nothing is mounted any more.
func (f files) remove(uuid string) error { return os.RemoveAll(f.folder(uuid)) }

// all are the devices that are ours.
func (f files) all() ([]state, error) {
	folders, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []state
	for _, entry := range folders {
		if s, bad := readState(filepath.Join(f.dir, entry.Name())); bad == nil {
			all = append(all, s)
		}
	}
	return all, err
}

// forClients is the daemon's socket that clients need. In the legacy protocol its others
// take commands, from every root: root of a container, too.
const forClients = "control"

// logForClients is what clients find in place of the daemon's pipe of that name: nothing that
// they write there is read. 64 KiB in the real one have a daemon of 535 to 555 hang for ever.
const logForClients = "log"

// show links what clients need into their folder, in place of what an earlier daemon
// had there. Containers see the folder itself, so those that run see it, too.
func (f files) show(uuid, space string) error {
	from, to := pipes(f.folder(uuid)), f.clients(uuid, space)
	if space != "" {
		from = filepath.Join(from, ourServer, space)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	source := filepath.Join(from, forClients)
	now, err := os.Stat(source)
	if err != nil {
		return err
	}
	if shown, err := os.Stat(filepath.Join(to, forClients)); err != nil || !os.SameFile(now, shown) {
		if err := replace(to, forClients, func(fresh string) error { return os.Link(source, fresh) }); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(filepath.Join(from, logForClients)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if at, err := os.Readlink(filepath.Join(to, logForClients)); err == nil && at == os.DevNull {
		return nil
	}
	return replace(to, logForClients, func(fresh string) error { return os.Symlink(os.DevNull, fresh) })
}

// replace puts what is made into the folder, in place of what has the name.
func replace(dir, name string, link func(fresh string) error) error {
	fresh := filepath.Join(dir, "."+name)
	return errors.Join(os.RemoveAll(fresh), link(fresh), os.Rename(fresh, filepath.Join(dir, name)))
}

// maxLog is how long a daemon's log may become: it has lines for every connection, and who
// connects are tenants. The node's disk is not theirs.
const maxLog = 4 << 20

// trim empties logs that have become too long.
func (f files) trim() error {
	logs, err := filepath.Glob(filepath.Join(f.dir, "*", "log", "*.log"))
	for _, path := range logs {
		if info, bad := os.Lstat(path); bad == nil && info.Mode().IsRegular() && info.Size() > maxLog {
			err = errors.Join(err, os.Truncate(path, 0))
		}
	}
	return err
}

// removeStale removes the folders of namespaces that exist no more.
func (f files) removeStale(uuid string, keep spaces, left []string) error {
	entries, err := os.ReadDir(f.clients(uuid, ""))
	for _, e := range entries {
		if _, is := keep[e.Name()]; e.IsDir() && !is && !slices.Contains(left, e.Name()) {
			err = errors.Join(err, os.RemoveAll(f.clients(uuid, e.Name())))
		}
	}
	return err
}

// given is the slice that a container was given.
type given struct {
	UUID string           `json:"uuid"`
	Core v1alpha1.Percent `json:"core"`
	Mem  v1alpha1.MiB     `json:"mem"`
}

func (f files) givenTo(container string) (string, bool) {
	if container == "" || strings.ContainsRune(container, '/') {
		return "", false
	}
	return filepath.Join(f.dir, givenFolder, container), true
}

func (f files) give(c mode.Container, g ledger.Grant) error {
	path, ok := f.givenTo(c.ID)
	text, err := json.Marshal(given{g.UUID, g.Core, g.Mem})
	if !ok || err != nil {
		return err
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = atomicfile.Write(path, bytes.NewReader(text), 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing down what container %s of pod %s has: %w; check the space on the node's state directory", c.Name, c.Owner, err)
	}
	return nil
}

func (f files) given(container string) (ledger.Grant, bool) {
	path, ok := f.givenTo(container)
	if !ok {
		return ledger.Grant{}, false
	}
	var had given
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &had) != nil {
		return ledger.Grant{}, false
	}
	return mode.Recalled(had.UUID, had.Core, had.Mem, v1alpha1.ModeMPS), true
}

// take forgets a container.
func (f files) take(container string) error {
	path, ok := f.givenTo(container)
	if !ok {
		return nil
	}
	return os.RemoveAll(path)
}

// keep forgets all containers but those.
func (f files) keep(ids map[string]bool) error {
	entries, err := os.ReadDir(filepath.Join(f.dir, givenFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !ids[e.Name()] {
			err = errors.Join(err, f.take(e.Name()))
		}
	}
	return err
}
