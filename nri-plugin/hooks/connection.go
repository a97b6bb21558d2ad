// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/version"

	"vernier.dev/vernier/api/v1alpha1"
)

// Timings of the connection.
const (
	dialTimeout = 2 * time.Second
	// registerTimeout bounds registration, configuration and synchronization
	// together; the runtime's own bounds are 5 s, 2 s and 2 s where nobody has set others.
	registerTimeout = 15 * time.Second
	minPause        = 250 * time.Millisecond
	maxPause        = 2 * time.Second
)

// ErrConnecting is why the plugin is not ready before its first connection.
var ErrConnecting = errors.New("not connected to the container runtime yet")

// ErrNoValidator is why a node's containers are not guarded while we are away. The
// runtime names the plugins that it has asked, its validator among them.
var ErrNoValidator = errors.New("the container runtime has its default validator off, so containers with slices would start without limits while vernier-node is away. Set enable = true in [plugins.'io.containerd.nri.v1.nri'.default_validator] of containerd's configuration and restart containerd")

// defaultValidator is the name under which the runtime lists its own.
const defaultValidator = "default-validator"

// Connection keeps the plugin registered with the runtime.
type Connection struct {
	// Socket is the runtime's NRI socket.
	Socket string
	Plugin *Plugin
	// Changed is called when the connection comes or goes, and when Err changes otherwise.
	// came is true for a connection that has just come. Optional.
	Changed func(came bool)

	state atomic.Pointer[error]
	// unguarded is set once this connection's runtime has shown that its validator is off:
	// it may do so before the session takes itself for connected.
	unguarded atomic.Bool
	runtime   atomic.Pointer[stub.Stub]
}

// Update asks the runtime to change running containers, and returns those that it
// has not changed. It waits until the runtime creates none, so it must not be called
// from within one of the plugin's methods.
func (c *Connection) Update(updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
	runtime := c.runtime.Load()
	if runtime == nil {
		return updates, ErrConnecting
	}
	return (*runtime).UpdateContainers(updates)
}

// Err is nil while the plugin is registered and synchronized, until the runtime
// shows at the creation of a container that its validator is off.
func (c *Connection) Err() error {
	switch err := c.state.Load(); {
	case err == nil:
		return ErrConnecting
	case *err == nil && c.unguarded.Load():
		return ErrNoValidator
	default:
		return *err
	}
}

// Run connects again and again until ctx ends.
func (c *Connection) Run(ctx context.Context) error {
	for pause := minPause; ctx.Err() == nil; {
		connected, err := c.session(ctx)
		c.Plugin.Table.Disconnected()
		if ctx.Err() != nil {
			return nil
		}
		c.set(fmt.Errorf("not connected to the container runtime: %w", err))
		pause = min(2*pause, maxPause)
		if connected {
			pause = minPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// session is one connection, from its first byte to its last.
func (c *Connection) session(ctx context.Context) (connected bool, err error) {
	conn, err := net.DialTimeout("unix", c.Socket, dialTimeout)
	if err != nil {
		return false, unreachable(c.Socket, err)
	}
	defer conn.Close()
	c.unguarded.Store(false)
	h := &handler{Plugin: c.Plugin, connection: c, synchronized: make(chan struct{})}
	s, err := stub.New(h,
		stub.WithPluginName(v1alpha1.NRIPluginName),
		stub.WithPluginIdx(v1alpha1.NRIPluginIndex),
		stub.WithConnection(conn),
		stub.WithLogger(logger{c.Plugin.Log}),
		stub.WithOnClose(func() {}),
		// An answer that is late or never comes fails the request: a runtime that
		// knows the policy would go on past us, its validator included. And it
		// drops us, for as long as we hang: the pods that need us are refused by
		// name then, and no other pod waits. Kept connected, we would fail every
		// creation of the node, 2 s each.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}),
	)
	if err != nil {
		return false, fmt.Errorf("setting up the NRI plugin: %w", err)
	}
	// The stub waits for the runtime's configuration without a bound of its own,
	// so it runs aside: closing the connection leaves it behind at the worst.
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	late := time.NewTimer(registerTimeout)
	defer late.Stop()
	select {
	case err := <-ended:
		if refusal := h.refusal.Load(); refusal != nil {
			err = *refusal
		}
		return false, fmt.Errorf("registering: %w", err)
	case <-late.C:
		return false, fmt.Errorf("registering took more than %s", registerTimeout)
	case <-ctx.Done():
		return false, ctx.Err()
	case <-h.synchronized:
	}
	c.runtime.Store(&s)
	defer c.runtime.Store(nil)
	c.set(nil)
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		err = errors.New("the runtime closed the connection")
	}
	return true, err
}

func (c *Connection) set(err error) {
	before := c.state.Swap(&err)
	// An error that has become another is reported like the first: each has its own remedy.
	if before != nil && fmt.Sprint(*before) == fmt.Sprint(err) {
		return
	}
	if err != nil {
		c.Plugin.Log.Error(err, "NRI")
	} else {
		c.Plugin.Log.Info("Connected to the container runtime")
	}
	c.changed(err == nil)
}

// showUnguarded notes that the runtime's validator is off, and tells of it once.
func (c *Connection) showUnguarded() {
	if c.unguarded.Swap(true) {
		return
	}
	c.Plugin.Log.Error(ErrNoValidator, "NRI")
	c.changed(false)
}

func (c *Connection) changed(came bool) {
	if c.Changed != nil {
		c.Changed(came)
	}
}

// handler is the plugin of one session; it tells when that is synchronized, and
// when the runtime turns out not to guard containers without us.
type handler struct {
	*Plugin
	connection   *Connection
	once         sync.Once
	synchronized chan struct{}
	// refusal is why Configure refused: the runtime then closes the connection, and
	// the stub may report no more than that.
	refusal atomic.Pointer[error]
}

func (h *handler) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	updates, err := h.Plugin.Synchronize(ctx, pods, containers)
	h.once.Do(func() { close(h.synchronized) })
	return updates, err
}

func (h *handler) ValidateContainerAdjustment(ctx context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	if !slices.ContainsFunc(req.GetPlugins(), func(p *api.PluginInstance) bool { return p.GetName() == defaultValidator }) {
		h.connection.showUnguarded()
	}
	return h.Plugin.ValidateContainerAdjustment(ctx, req)
}

// logger gives the stub's lines to ours. The stub reports every event at info.
type logger struct{ logr.Logger }

func (l logger) Debugf(_ context.Context, format string, args ...any) {
	l.V(2).Info(fmt.Sprintf(format, args...))
}

func (l logger) Infof(_ context.Context, format string, args ...any) {
	l.V(1).Info(fmt.Sprintf(format, args...))
}

func (l logger) Warnf(_ context.Context, format string, args ...any) {
	l.Logger.Info(fmt.Sprintf(format, args...))
}

func (l logger) Errorf(_ context.Context, format string, args ...any) {
	l.Logger.Info(fmt.Sprintf(format, args...))
}

// What the runtime must be and how it must be set, each with the remedy that an operator
// reads in the ledger.
const (
	nriOff = "set disable = false and disable_connections = false in [plugins.'io.containerd.nri.v1.nri'] of " +
		"containerd's configuration and restart containerd; where socket_path there names another socket, set --nri-socket to it"
	tooOld = "its NRI has no default validator, so containers with slices would start without limits while vernier-node is away; " +
		"update containerd to 2.2 or newer"
)

// oldest is the first containerd with a default validator.
var oldest = version.MustParseGeneric("2.2")

// unreachable says what is missing where the runtime's socket cannot be dialed.
func unreachable(socket string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist: containerd runs without NRI, or not at all: %s", socket, nriOff)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at %s: containerd is stopped, or was started again without NRI: %s", socket, nriOff)
	}
	return fmt.Errorf("%w: see that containerd runs with NRI: %s", err, nriOff)
}

// supported refuses a containerd without a default validator. A version that
// cannot be read, as of a build from source, is believed to be new: what it lacks
// then, the first creation of a container shows.
func supported(runtime, says string) error {
	if v, err := version.ParseGeneric(says); runtime == "containerd" && err == nil && v.LessThan(oldest) {
		return fmt.Errorf("%s %s: %s", runtime, says, tooOld)
	}
	return nil
}

// Configure is the runtime's first word. No event is named: all that the plugin
// handles are meant.
func (h *handler) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	err := supported(runtime, version)
	if err != nil {
		h.refusal.Store(&err)
	}
	return 0, err
}
