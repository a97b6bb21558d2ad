// SPDX-License-Identifier: Apache-2.0

// Package system owns a real cluster with Vernier installed as a user would
// install it: the manifests of deploy/, two webhooks, two allocators, a node agent
// on every node, each with its own service account and no more rights than that
// has. GPUs are simulated (test/simgpu), or the machine's; nothing else is simulated.
//
// It never reaches into a part: what a test does to one, a user, a kernel or a
// power cut could do as well.
package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/simgpu"
)

// patience bounds every wait of this package.
const patience = 3 * time.Minute

// Options say what to bring up.
type Options struct {
	Nodes []NodeOptions
	// Name is the folder below bin/log that keeps the logs of all processes; it is
	// emptied first.
	Name string
	// Chart installs the Helm chart with the images of `make images`, as a user's
	// cluster would, and Vernier's parts run in pods. Otherwise they run beside the
	// cluster's own processes, where a test can end them.
	Chart bool
	// Release is a folder with the chart and the images of another release, which Chart
	// installs in place of this repository's.
	Release string
	// Manifests are the chart as rendered with other values than its own, where the parts run
	// beside the cluster: they get the flags that these values stand for.
	Manifests manifests.Folder
	// Dir holds all that the cluster writes; empty is the cluster's own choice.
	Dir string
	// Progress gets a line for every step.
	Progress io.Writer
	// Keep has Main leave the system up.
	Keep bool
}

// NodeOptions is one node and its GPUs.
type NodeOptions struct {
	Name string
	GPUs simgpu.GPU
	// More GPUs, which differ from these.
	More []simgpu.GPU
	// Driver is the driver's version; empty is that of the profile in SIMGPU_PROFILE, else
	// the newest.
	Driver string
	// DriverRoot is where this machine's driver is (FindDriver): the node has the machine's
	// GPUs, and none that are simulated.
	DriverRoot string
	// MIG: the GPUs may be put into MIG mode, if they aren't from the start.
	MIG bool
	// Args are more flags of its agent, where that runs beside the cluster.
	Args []string
}

// System is the cluster with Vernier on it.
type System struct {
	Cluster *cluster.Cluster
	// Kube and Client may do everything.
	Kube   kubernetes.Interface
	Client client.Client

	Nodes []*Node
	// Webhooks and Allocators are the parts that run beside the cluster; with
	// Options.Chart there are none.
	Webhooks   []*Process
	Allocators []*Process

	manifests    manifests.Folder
	metricsToken string
	// endParts ends the looking after parts, and returns when that is over.
	endParts func()

	progress io.Writer
	bin      string
	gpus     []*GPUs
	args     [][]string
}

// Up brings it up and returns when a pod that asks for a share would be served.
// After an error the caller must still call Down on a System that is not nil.
func Up(ctx context.Context, o Options) (*System, error) {
	root, err := manifests.Root()
	if err != nil {
		return nil, err
	}
	s := &System{progress: o.Progress, bin: filepath.Join(root, "bin"), manifests: o.Manifests}
	if s.progress == nil {
		s.progress = io.Discard
	}
	return s, s.up(ctx, o)
}

func (s *System) up(ctx context.Context, o Options) error {
	logs := filepath.Join(s.bin, "log", o.Name)
	err := os.RemoveAll(logs)
	if err != nil {
		return err
	}
	s.Cluster, err = cluster.Up(ctx, cluster.Config{Dir: o.Dir, Nodes: s.simulate(o.Nodes), LogDir: logs, Progress: s.progress})
	if err != nil {
		return err
	}
	s.Kube = s.Cluster.Client
	if err := s.connect(); err != nil {
		return err
	}
	if err := s.images(ctx); err != nil {
		return err
	}
	if o.Chart {
		s.step("installing Vernier: the chart, with the images")
		if err := s.installChart(ctx, o.Release); err != nil {
			return err
		}
		return s.awaitServing(ctx)
	}
	s.step("installing Vernier: CRD, RBAC, admission, two webhooks, two allocators, the node agents")
	if err := s.install(ctx); err != nil {
		return err
	}
	if err := s.startParts(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	parts.Go(func() { s.lookAfterParts(ctx) })
	s.endParts = func() {
		cancel()
		parts.Wait()
	}
	return s.awaitServing(ctx)
}

func (s *System) connect() error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	var err error
	s.Client, err = client.New(s.Cluster.REST, client.Options{Scheme: scheme})
	return err
}

// Down stops everything and puts back what was changed.
func (s *System) Down() error {
	if s.Cluster == nil {
		return nil
	}
	s.leaveParts()
	return s.Cluster.Down()
}

// Keep leaves it up, and says how to use it.
func (s *System) Keep() error {
	s.leaveParts()
	fmt.Fprintf(s.progress, "the cluster stays up:\nexport KUBECONFIG=%s PATH=%s:$PATH\n", s.Cluster.Kubeconfig(), s.Path())
	return s.Cluster.Keep()
}

func (s *System) leaveParts() {
	if s.endParts != nil {
		s.endParts()
	}
}

// Logs is what a container has written so far.
func (s *System) Logs(ctx context.Context, namespace, pod, container string) (string, error) {
	return s.Cluster.Logs(ctx, namespace, pod, container)
}

func (s *System) step(format string, a ...any) { fmt.Fprintf(s.progress, "  "+format+"\n", a...) }
