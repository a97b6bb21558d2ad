// SPDX-License-Identifier: Apache-2.0

// Package cluster owns a real Kubernetes cluster on this machine, for tests, the
// demo and a person: etcd, the control plane, and one or more nodes with a
// containerd, runc, CNI and a kubelet each, in network and mount namespaces of
// their own. It starts other programs in the right place, and puts the machine
// back as it was, also after a failure, a cancelled context or a kill.
//
// It knows nothing of GPUs or of Vernier's parts, changes no sysctl, route or
// interface outside its own namespaces, and listens outside them only on
// loopback. It needs root.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"vernier.dev/vernier/test/cluster/machine"
)

// Cluster is a cluster that runs.
type Cluster struct {
	// REST and Client are the administrator's, for use in this process.
	REST   *rest.Config
	Client kubernetes.Interface
	// ControlPlane is where etcd and the API server run, and where a process runs
	// that is given no other place.
	ControlPlane *Place
	Nodes        []*Node

	tools       *binaries
	hierarchies machine.Hierarchies
	group       *os.File      // the control group of everything that is started
	lock        *machine.Lock // nil in a process that has attached itself
	progress    io.Writer
	begin       time.Time
	stayUp      func() bool // ends the tie to Up's context

	placing sync.Mutex // one new place at a time: its number gives it its address

	mu        sync.Mutex // guards what follows
	state     *state
	processes map[string]*Process
	down      *downResult
}

// startTimeout bounds the start from the moment that all programs are built.
const startTimeout = 2 * time.Minute

// Up starts a cluster and returns when its nodes are Ready and pods can be
// created. It first removes what a killed harness left on the machine, and waits
// while another process has a cluster. A cluster that was kept on purpose is an
// error: it is for whoever keeps it to stop.
//
// When the context ends, during Up or later, the cluster is taken down.
func Up(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(recordDir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: run as root", err)
	}
	lock, err := machine.WaitLock(ctx, lockFile, cfg.Progress)
	if err != nil {
		return nil, err
	}
	c := &Cluster{lock: lock, progress: cfg.Progress, processes: map[string]*Process{}}
	if err := c.prepare(ctx, cfg); err != nil {
		lock.Unlock()
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		if ctx.Err() != nil { // what failed is only what the end of the context broke
			err = ctx.Err()
		}
		return nil, errors.Join(err, c.Down())
	}
	c.stayUp = context.AfterFunc(ctx, func() { _ = c.Down() })
	return c, nil
}

// prepare does what leaves nothing on the machine when it fails.
func (c *Cluster) prepare(ctx context.Context, cfg Config) (err error) {
	if err := removeLeftovers(ctx, cfg); err != nil {
		return err
	}
	if err := cfg.checkDir(); err != nil {
		return err
	}
	if problems := Preflight(cfg); len(problems) > 0 {
		return problems
	}
	if c.hierarchies, err = machine.FindHierarchies(); err != nil {
		return err
	}
	if c.tools, err = findBinaries(ctx, cfg.Progress); err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	c.state = &state{Boot: boot, Dir: cfg.Dir, LogDir: cfg.LogDir, Nodes: cfg.Nodes}
	return nil
}

func (c *Cluster) start(ctx context.Context) error {
	c.begin = time.Now()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.layOut(); err != nil {
		return err
	}
	c.step("namespaces, credentials and images made")
	apiReady := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := c.startAPIServer(ctx); err != nil {
			return err
		}
		close(apiReady)
		c.step("API server ready")
		if err := c.startControllers(ctx); err != nil {
			return err
		}
		c.step("controllers work")
		return nil
	})
	for _, n := range c.Nodes {
		g.Go(func() error {
			if err := n.startContainerd(ctx); err != nil {
				return err
			}
			c.step("containerd of %s ready", n.Name)
			select {
			case <-apiReady:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := n.startKubelet(ctx); err != nil {
				return err
			}
			c.step("node %s Ready", n.Name)
			return nil
		})
	}
	return g.Wait()
}

// layOut makes what the processes need: the record, folders, control groups,
// namespaces, credentials, images.
func (c *Cluster) layOut() error {
	if err := c.state.save(); err != nil {
		return err
	}
	for _, dir := range []string{c.state.Dir, c.state.LogDir, filepath.Join(c.state.Dir, "images")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := c.makeGroups(); err != nil {
		return err
	}
	var err error
	if c.ControlPlane, err = c.addPlace(controlPlane, controlPlaneIP, ""); err != nil {
		return err
	}
	for i, config := range c.state.Nodes {
		n := &Node{Place: &Place{Name: config.Name}, config: config, index: i, c: c}
		script, err := n.layOut()
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		if n.Place, err = c.addPlace(config.Name, nodeIP(i), script); err != nil {
			return err
		}
		err = c.ControlPlane.inNetwork(func(h *netlink.Handle) error {
			pods, err := netlink.ParseIPNet(podSubnet(i))
			if err != nil {
				return err
			}
			return h.RouteAdd(&netlink.Route{Dst: pods, Gw: net.ParseIP(n.IP)})
		})
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	if err := c.startForward(); err != nil {
		return err
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	return c.writeImages()
}

// makeGroups makes the control groups; each node's is a kubelet's root.
func (c *Cluster) makeGroups() (err error) {
	if len(c.hierarchies.V1) == 0 {
		if c.state.Controllers, err = c.hierarchies.Enable(); err != nil {
			return err
		}
		if err := c.state.save(); err != nil {
			return err
		}
	}
	for _, n := range c.state.Nodes {
		if err := c.hierarchies.Create(prefix + n.Name); err != nil {
			return fmt.Errorf("control group of node %s: %w", n.Name, err)
		}
	}
	return c.openGroup()
}

func (c *Cluster) openGroup() (err error) {
	dir := filepath.Join(c.hierarchies.Unified, systemGroup)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	c.group, err = os.Open(dir)
	return err
}

func (c *Cluster) connect() (err error) {
	if c.REST, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	// Tests share it; the API server has its own limits.
	c.REST.QPS = -1
	c.Client, err = kubernetes.NewForConfig(c.REST)
	return err
}

// Dir holds everything that the cluster writes. Callers may put more there: it
// is removed with the cluster.
func (c *Cluster) Dir() string { return c.state.Dir }

// Node is the node of that name, or nil.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Place is the node, control plane or added place of that name, or nil.
func (c *Cluster) Place(name string) *Place {
	if name == "" {
		name = controlPlane
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.state.Places {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Keep lets the cluster outlive this process and Up's context: `vernier-cluster
// down` stops it. An attached one is kept, or not, by who started it.
func (c *Cluster) Keep() error {
	if c.lock == nil {
		return nil
	}
	c.stayUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Kept = true
	if err := c.state.save(); err != nil {
		return err
	}
	c.lock.Unlock()
	return nil
}
