// SPDX-License-Identifier: Apache-2.0

// Package mps owns the mode in which containers are clients of one MPS server on
// their device. It has one control daemon for each device that has such slices. It
// starts it with the first, holds it to what the slices allow, watches it, and ends it
// with the last. A daemon outlives the agent, and the next agent takes it up from what
// is on the node.
//
// It never ends a client that its server serves, and never uses the daemon of another
// owner. It never lets a container see the pipe that daemons take commands from. The
// files in /dev/shm that a server shares with its clients are in a tmpfs of the
// device's own. No container sees that of the node, or of another device.
//
// The limits depend on the protocol. In protocol 3, which drivers from R615 on have, each slice has a
// namespace. Its limits bind every process that has its folder, whatever its environment says. In
// the legacy protocol the server's own limits bind every client so. They are those of the
// largest slice on the device, for a server has one limit for all. A slice's own limits
// are then in its containers' environment, which can only lower the server's; a tenant
// may drop them.
package mps

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
)

// Folder is where a container finds its server. It is not NVIDIA's default, so what
// runs elsewhere on the node is not taken for ours.
const Folder = "/usr/local/vernier-mps"

// Environment of MPS' clients.
const (
	envPipe     = "CUDA_MPS_PIPE_DIRECTORY"
	envLog      = "CUDA_MPS_LOG_DIRECTORY"
	envThreads  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	envMemory   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	envVisible  = "CUDA_VISIBLE_DEVICES"
	envProtocol = "CUDA_MPS_PROTOCOL_VERSION"
)

// Node is what the mode needs of the node. All fields are required.
type Node struct {
	Devices device.Devices
	// Find finds what starts control daemons and talks to them. Its error says why
	// there can be none; a driver may come later.
	Find func() (Daemons, error)
	// Index is the latest ledger.
	Index func() *ledger.Index
	// Containers that the runtime has and that hold slices; false while the runtime
	// is out of sight, and they may be others.
	Containers func() (all []mode.Container, known bool)
	// Driver holds a container's memory where the driver can.
	Driver *driverlimit.Limit
	// Root reports whether a process is root for those outside of its container, or
	// could be.
	Root func(pid uint32) bool
	// Warn tells the pod of a container what has befallen it.
	Warn func(c mode.Container, reason, message string)
}

// Daemons are control daemons, each known by its folder.
type Daemons interface {
	// Mount mounts the tmpfs that the folder's daemon shares with its clients, unless it is
	// there. It takes so much of the node's memory at most. Unmount is its end.
	Mount(dir string, percent int) error
	Unmount(dir string) error
	// Shares reports whether a process has that tmpfs, and not another, as SharedMemory.
	Shares(dir string, pid int) (bool, error)
	// Start starts one for a device, with its pipes in the folder and the folder's tmpfs,
	// in the newest protocol that the driver has.
	Start(dir, uuid string, driver branch) error
	// Ask sends a command of the legacy protocol and returns the reply. An error means
	// that nobody has answered in that time.
	Ask(dir, command string, wait time.Duration) (string, error)
	// Run runs a command of protocol 3. An error may be a refusal, too.
	Run(dir string, wait time.Duration, command ...string) (string, error)
	// Processes are those of the folder's daemon and of the servers that it has
	// started, also after the daemon is gone.
	Processes(dir string) ([]Process, error)
	// End ends processes and returns when they are gone.
	End([]Process) error
}

// A daemon answers within milliseconds. One that does not, twice in a row, within
// patience is taken for dead, and a loaded machine must not look like that; while the
// runtime waits, which it does for two seconds, there is less time.
const (
	patience = 5 * time.Second
	briefly  = time.Second
)

// Mode is the mode.
type Mode struct {
	node  Node
	files files
	// patience and haste are those of above; a test has others.
	patience, haste time.Duration

	// mu is held while daemons are started and ended, which takes seconds. The
	// creation of a container must not wait for it.
	mu sync.Mutex
	// warned are the devices whose containers know that their server is gone, until there is
	// another.
	warned map[string]bool
	// setting has a place, taken while a server's limits are changed or read back.
	setting chan struct{}

	reading sync.Mutex
	// found is what Find found.
	found Daemons
	// ready are the devices that take clients, by UUID.
	ready map[string]server
	// owed are those whose containers could not be warned that their server is gone, for the
	// runtime was out of sight.
	owed map[string]bool

	// faults are those whose server had one, known to Look alone.
	faults map[string]fault
}

// server is a device's, with the limits that it was given and confirmed.
type server struct {
	pid    int
	spaces spaces
}

// space is the namespace that holds a container to its limits, once one does.
func (s server) space(c mode.Container, own limits) (string, bool) {
	if of, one := s.spaces[""]; one {
		return "", of.cover(own)
	}
	name := spaceOf(c.Key())
	held, is := s.spaces[name]
	return name, is && held == own
}

// New keeps its files in a folder, which must have the same path on the node: the
// runtime mounts from there.
func New(dir string, node Node) *Mode {
	return &Mode{node: node, files: files{dir}, patience: patience, haste: briefly, setting: make(chan struct{}, 1), warned: map[string]bool{}, owed: map[string]bool{}, ready: map[string]server{}, faults: map[string]fault{}}
}

// Supports needs a node with MPS and a device that isn't cut up.
func (m *Mode) Supports(d v1alpha1.DeviceStatus, _ ledger.Grant) error {
	if _, err := m.daemons(); err != nil {
		return err
	}
	if d.MIG == v1alpha1.MIGEnabled {
		return errors.New("it is in MIG mode; switch it off, or delete the pod so that it is placed on another device")
	}
	return nil
}

// Inject gives the device, the way to its server, and the slice's limits.
func (m *Mode) Inject(c mode.Container, adjust *api.ContainerAdjustment) error {
	g, err := only(c)
	if err != nil {
		return err
	}
	own := limitsOf(g)
	has, _ := m.server(g.UUID)
	space, held := has.space(c, own)
	if !held {
		return fmt.Errorf("the MPS server of device %s is not ready. It is tried again, and the agent's log says what keeps it", g.UUID)
	}
	if err := m.files.give(c, g); err != nil {
		return err
	}
	mode.InjectDevices(c, adjust)
	adjust.AddMount(&api.Mount{
		Source: m.files.clients(g.UUID, space), Destination: Folder, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"},
	})
	// In place of the pod's own.
	adjust.AddMount(&api.Mount{
		Source: shared(m.files.folder(g.UUID)), Destination: SharedMemory, Type: "bind", Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"},
	})
	adjust.AddEnv(envPipe, Folder)
	if space != "" {
		return nil // it holds them
	}
	adjust.AddEnv(envThreads, own.threads())
	// By number: a limit that names a device which the client does not see makes it
	// drop them all, and it sees this one only.
	adjust.AddEnv(envMemory, "0="+own.memory())
	return nil
}

// only is the container's one slice.
func only(c mode.Container) (ledger.Grant, error) {
	if len(c.Grants) != 1 {
		return ledger.Grant{}, fmt.Errorf("it has slices of %d devices, and is a client of one MPS server; delete the pod so that it is placed again", len(c.Grants))
	}
	return c.Grants[0], nil
}

// Apply reads back what its server holds every client to, and that the container has the
// memory that clients share with it. It sets the driver's limit where there is one.
func (m *Mode) Apply(c mode.Container, pid uint32) ([]v1alpha1.SliceStatus, error) {
	g, err := only(c)
	if err != nil {
		return nil, err
	}
	if err := m.verify(c, g, pid); err != nil {
		return nil, fmt.Errorf("device %s: %w", g.UUID, err)
	}
	all := m.statuses(c, pid)
	if err := m.node.Driver.Apply(c, pid, all); err != nil {
		return nil, err
	}
	return all, nil
}

// Observe reads the driver's limit. Events tell the pod how its server is.
func (m *Mode) Observe(c mode.Container, pid uint32) []v1alpha1.SliceStatus {
	all := m.statuses(c, pid)
	if m.node.Driver.Observe(c, pid, all) != nil {
		return nil
	}
	return all
}

// statuses are what MPS alone holds.
func (m *Mode) statuses(c mode.Container, pid uint32) []v1alpha1.SliceStatus {
	all := mode.Cooperative(c)
	for i := range all {
		switch {
		case m.protocol(all[i].UUID) != namespaces:
			mode.Note(&all[i], "MPS limits each process apart, and one that drops its limits has those of the device's largest slice")
			if m.branch() < manyUsers {
				mode.Note(&all[i], "before driver R555 its server takes the clients of one user at a time: those of another wait until the last has ended")
			}
		case m.node.Root(pid):
			mode.Note(&all[i], "MPS limits each process apart, and takes commands from root of the node, as the container's first process is. Give it another user (runAsUser) or a user namespace (hostUsers: false)")
		default:
			mode.Note(&all[i], "MPS limits each process apart, and no multiprocessor is the slice's alone")
		}
	}
	return all
}

// Recall reads what the container was given.
func (m *Mode) Recall(c mode.Container, _ []v1alpha1.SliceStatus) []ledger.Grant {
	if g, given := m.files.given(c.ID); given {
		return []ledger.Grant{g}
	}
	return nil
}

// Ended forgets the container.
func (m *Mode) Ended(c mode.Container) error { return m.files.take(c.ID) }

// Release ends the daemons of devices that the pod's slices were the last on.
func (m *Mode) Release(types.UID) error { return m.Settle() }

// server is the device's, once it is ready.
func (m *Mode) server(uuid string) (server, bool) {
	m.reading.Lock()
	defer m.reading.Unlock()
	s, ready := m.ready[uuid]
	return s, ready
}

func (m *Mode) set(uuid string, s server) {
	m.reading.Lock()
	defer m.reading.Unlock()
	m.ready[uuid] = s
}

func (m *Mode) unset(uuid string) {
	m.reading.Lock()
	defer m.reading.Unlock()
	delete(m.ready, uuid)
}

// Mark tells in a fresh picture which devices are MPS': nothing beside its clients
// gets a context there.
func (m *Mode) Mark(now *device.Snapshot) {
	_, err := m.daemons()
	if now.Driver.MPS = err == nil; err != nil {
		now.Driver.MPSReason = err.Error()
	}
	for i := range now.Devices {
		_, ours := m.files.state(now.Devices[i].UUID)
		now.Devices[i].MPS = ours
	}
}

// daemons are the node's, once there are any.
func (m *Mode) daemons() (Daemons, error) {
	m.reading.Lock()
	defer m.reading.Unlock()
	if m.found != nil {
		return m.found, nil
	}
	found, err := m.node.Find()
	if err == nil {
		m.found = found
	}
	return found, err
}

func pipes(dir string) string { return filepath.Join(dir, "pipe") }
