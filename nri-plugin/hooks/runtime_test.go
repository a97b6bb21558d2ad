// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"
	"github.com/go-logr/logr"
)

func TestMain(m *testing.M) {
	nrilog.Set(logger{logr.Discard()})
	os.Exit(m.Run())
}

// containerRuntime is the runtime's side of NRI, the real one, on a socket.
type containerRuntime struct {
	*adaptation.Adaptation
	socket string

	mu         sync.Mutex
	pods       []*api.PodSandbox
	containers []*api.Container
}

func startRuntime(t testing.TB) *containerRuntime {
	t.Helper()
	dir := t.TempDir()
	r := &containerRuntime{socket: filepath.Join(dir, "nri.sock")}
	a, err := adaptation.New("test", "v2.4.2",
		func(ctx context.Context, synchronize adaptation.SyncCB) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			_, err := synchronize(ctx, r.pods, r.containers)
			return err
		},
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(r.socket),
		adaptation.WithPluginPath(filepath.Join(dir, "plugins")),
		adaptation.WithPluginConfigPath(filepath.Join(dir, "conf")),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	r.Adaptation = a
	return r
}

// lists is what the runtime tells a plugin that connects.
func (r *containerRuntime) lists(pods []*api.PodSandbox, containers []*api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods, r.containers = pods, containers
}

// create asks all plugins as the runtime does when the kubelet wants a container.
func (r *containerRuntime) create(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	answer, err := r.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: c})
	return answer.GetAdjust(), err
}

func (r *containerRuntime) start(pod *api.PodSandbox, c *api.Container) error {
	return r.Adaptation.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: c})
}

func (r *containerRuntime) stop(t testing.TB, pod *api.PodSandbox, c *api.Container) {
	t.Helper()
	if _, err := r.Adaptation.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
}

func (r *containerRuntime) remove(t testing.TB, pod *api.PodSandbox, c *api.Container) {
	t.Helper()
	if err := r.Adaptation.RemoveContainer(context.Background(), &api.RemoveContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
}

// link is our plugin, connected. Its state only changes along with changed.
type link struct {
	*Connection
	changed    chan struct{}
	disconnect func()
}

// connect runs our plugin against the runtime until the test ends.
func connect(t testing.TB, r *containerRuntime, p *Plugin) *link {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{changed: make(chan struct{}, 16)}
	l.Connection = &Connection{Socket: r.socket, Plugin: p, Changed: func() { l.changed <- struct{}{} }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	l.disconnect = func() {
		cancel()
		<-ended
	}
	t.Cleanup(l.disconnect)
	await(t, l.changed, func() bool { return l.Err() == nil })
	r.admitted()
	return l
}

// throughWire puts a wire between the runtime and plugins that connect from now
// on, and returns what cuts it, as the runtime's death would.
func (r *containerRuntime) throughWire(t testing.TB) (cut func()) {
	t.Helper()
	far := r.socket
	r.socket = filepath.Join(t.TempDir(), "wire.sock")
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ends := make(chan net.Conn, 16)
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
			go io.Copy(plugin, runtime)
			go io.Copy(runtime, plugin)
			ends <- plugin
			ends <- runtime
		}
	}()
	return func() {
		(<-ends).Close()
		(<-ends).Close()
	}
}

// admitted returns once the runtime asks the plugins that it has synchronized.
// The runtime itself creates no container in between.
func (r *containerRuntime) admitted() { r.BlockPluginSync().Unblock() }

// await waits for a condition that only changes along with a signal.
func await(t testing.TB, changed <-chan struct{}, holds func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-changed:
		case <-late:
			t.Fatal("it did not come to hold")
		}
	}
}

// otherPlugin is a plugin of somebody else's that adjusts every container.
type otherPlugin struct {
	adjust func(*api.ContainerAdjustment)
	synced chan struct{}
}

func (o *otherPlugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(o.synced)
	return nil, nil
}

func (o *otherPlugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	o.adjust(a)
	return a, nil, nil
}

// connectOther runs a foreign plugin until the test ends, after ours in order.
func connectOther(t testing.TB, r *containerRuntime, adjust func(*api.ContainerAdjustment)) {
	t.Helper()
	o := &otherPlugin{adjust: adjust, synced: make(chan struct{})}
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	s, err := stub.New(o, stub.WithConnection(conn), stub.WithPluginName("other"), stub.WithPluginIdx("90"),
		stub.WithLogger(logger{logr.Discard()}), stub.WithOnClose(func() {}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	<-o.synced
	r.admitted()
}
