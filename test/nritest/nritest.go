// SPDX-License-Identifier: Apache-2.0

// Package nritest owns the container runtime's side of NRI for tests: the real
// adaptation that containerd links, on a socket, without a containerd. It is
// imported by tests only.
package nritest

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"

	"vernier.dev/vernier/test/must"
)

// Patience is how long the runtime waits for a plugin here. In production it is 2 s, which
// a machine that has no time for the test may need, and a plugin that was late is dropped.
const Patience = 90 * time.Second

// The adaptation's log is nobody's concern in a test that passes.
func init() {
	nrilog.Set(quiet{})
	adaptation.SetPluginRegistrationTimeout(Patience)
	adaptation.SetPluginRequestTimeout(Patience)
}

// Impatient has the runtime wait for no longer than it does in production, until the test
// ends, in a test of what never answers.
func Impatient(t testing.TB) {
	t.Helper()
	adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(Patience) })
}

type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

// Runtime is the runtime's side of NRI, the real one, on a socket.
type Runtime struct {
	*adaptation.Adaptation
	// Socket is where plugins connect.
	Socket string

	mu         sync.Mutex
	pods       []*api.PodSandbox
	containers []*api.Container
	updates    map[string]*api.LinuxResources
}

// Start begins a runtime that ends with the test. It is set up as the README asks:
// with the default validator.
func Start(t testing.TB) *Runtime {
	t.Helper()
	return StartVersion(t, "v2.4.2")
}

// StartVersion begins one that says that it is containerd of that version.
func StartVersion(t testing.TB, version string) *Runtime {
	t.Helper()
	return start(t, version, adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true}))
}

// StartUnguarded begins one without the validator.
func StartUnguarded(t testing.TB) *Runtime {
	t.Helper()
	return start(t, "v2.4.2")
}

func start(t testing.TB, version string, options ...adaptation.Option) *Runtime {
	t.Helper()
	dir := t.TempDir()
	r := &Runtime{Socket: filepath.Join(dir, "nri.sock")}
	a := must.Get(adaptation.New("containerd", version,
		func(ctx context.Context, synchronize adaptation.SyncCB) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			_, err := synchronize(ctx, r.pods, r.containers)
			return err
		},
		r.update,
		append(options,
			adaptation.WithSocketPath(r.Socket),
			adaptation.WithPluginPath(filepath.Join(dir, "plugins")),
			adaptation.WithPluginConfigPath(filepath.Join(dir, "conf")),
		)...,
	))(t)
	must.Do(t, a.Start())
	t.Cleanup(a.Stop)
	r.Adaptation = a
	return r
}

// update does what a plugin asks for of its own accord.
func (r *Runtime) update(_ context.Context, all []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.updates == nil {
		r.updates = map[string]*api.LinuxResources{}
	}
	for _, u := range all {
		r.updates[u.GetContainerId()] = u.GetLinux().GetResources()
	}
	return nil, nil
}

// Updated is what a plugin has last asked for of its own accord, nil for nothing.
func (r *Runtime) Updated(container string) *api.LinuxResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.updates[container]
}

// Update asks all plugins as the runtime does when the kubelet changes a container,
// and returns what it would set.
func (r *Runtime) Update(t testing.TB, pod *api.PodSandbox, c *api.Container, wanted *api.LinuxResources) *api.LinuxResources {
	t.Helper()
	answer := must.Get(r.UpdateContainer(context.Background(), &api.UpdateContainerRequest{Pod: pod, Container: c, LinuxResources: wanted}))(t)
	for _, u := range answer.GetUpdate() {
		if u.GetContainerId() == c.GetId() {
			return u.GetLinux().GetResources()
		}
	}
	return wanted
}

// Lists is what the runtime tells a plugin that connects.
func (r *Runtime) Lists(pods []*api.PodSandbox, containers []*api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods, r.containers = pods, containers
}

// Create asks all plugins as the runtime does when the kubelet wants a container.
func (r *Runtime) Create(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	answer, err := r.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: c})
	return answer.GetAdjust(), err
}

// StartContainer asks before the container runs.
func (r *Runtime) StartContainer(pod *api.PodSandbox, c *api.Container) error {
	return r.Adaptation.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: c})
}

// StopContainer tells that a container has ended.
func (r *Runtime) StopContainer(t testing.TB, pod *api.PodSandbox, c *api.Container) {
	t.Helper()
	must.Get(r.Adaptation.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: c}))(t)
}

// RemoveContainer tells that a container is gone.
func (r *Runtime) RemoveContainer(t testing.TB, pod *api.PodSandbox, c *api.Container) {
	t.Helper()
	must.Do(t, r.Adaptation.RemoveContainer(context.Background(), &api.RemoveContainerRequest{Pod: pod, Container: c}))
}

// Admitted returns once the runtime asks the plugins that it has synchronized.
// The runtime itself creates no container in between.
func (r *Runtime) Admitted() { r.BlockPluginSync().Unblock() }

// Wire is what plugins reach the runtime through.
type Wire struct {
	listener net.Listener
	mu       sync.Mutex
	ends     []net.Conn
}

// ThroughWire puts a wire between the runtime and plugins that connect from now on.
func (r *Runtime) ThroughWire(t testing.TB) *Wire {
	t.Helper()
	far := r.Socket
	r.Socket = filepath.Join(t.TempDir(), "wire.sock")
	l := must.Get(net.Listen("unix", r.Socket))(t)
	w := &Wire{listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			plugin, err := l.Accept()
			if err != nil {
				return
			}
			runtime, err := net.Dial("unix", far)
			if err != nil {
				plugin.Close()
				continue
			}
			w.mu.Lock()
			w.ends = append(w.ends, plugin, runtime)
			w.mu.Unlock()
			go carry(plugin, runtime)
			go carry(runtime, plugin)
		}
	}()
	return w
}

// Cut ends all connections, as a restart of the runtime would: plugins may come again.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, end := range w.ends {
		end.Close()
	}
	w.ends = nil
}

// Die ends all connections for good, as the runtime's death would.
func (w *Wire) Die() {
	w.listener.Close()
	w.Cut()
}

// carry copies until one end is closed, and closes the other.
func carry(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
}
