// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// link is our plugin, connected.
type link struct {
	*Connection
	// changed has what was each time that it changed: what is now may last for a moment.
	changed    chan moment
	disconnect func()
}

// moment is what was so when a connection changed.
type moment struct {
	err    error
	synced bool
}

// connect runs our plugin against the runtime until the test ends.
func connect(t testing.TB, r *nritest.Runtime, p *Plugin) *link {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{changed: make(chan moment, 64)}
	l.Connection = &Connection{Socket: r.Socket, Plugin: p, Changed: func(bool) { l.changed <- moment{l.Err(), p.Table.Synced()} }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		must.Report(t, l.Run(ctx))
	}()
	l.disconnect = func() {
		cancel()
		<-ended
	}
	t.Cleanup(l.disconnect)
	l.await(t, func(m moment) bool { return m.err == nil })
	r.Admitted()
	return l
}

// await returns the next moment of which that holds.
func (l *link) await(t testing.TB, holds func(moment) bool) moment {
	t.Helper()
	late := time.After(90 * time.Second)
	for {
		select {
		case m := <-l.changed:
			if holds(m) {
				return m
			}
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
func connectOther(t testing.TB, r *nritest.Runtime, adjust func(*api.ContainerAdjustment)) {
	t.Helper()
	o := &otherPlugin{adjust: adjust, synced: make(chan struct{})}
	conn := must.Get(net.Dial("unix", r.Socket))(t)
	s := must.Get(stub.New(o, stub.WithConnection(conn), stub.WithPluginName("other"), stub.WithPluginIdx("90"),
		stub.WithLogger(logger{logr.Discard()}), stub.WithOnClose(func() {})))(t)
	must.Do(t, s.Start(context.Background()))
	t.Cleanup(s.Stop)
	<-o.synced
	r.Admitted()
}
