// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// BenchmarkCreateContainer is one request of the runtime and all of its plugins'
// answers, over a socket: with ours as the only plugin, for containers with and
// without a slice, and with one that answers the same requests with nothing. The
// ledger is warm and full, the container is an ordinary one of the kubelet's.
func BenchmarkCreateContainer(b *testing.B) {
	b.Run("noop", func(b *testing.B) {
		r := nritest.Start(b)
		connectNoop(b, r)
		benchCreate(b, r, manyPods(share3), func() {})
	})
	b.Run("vernier", func(b *testing.B) {
		r, pods := nritest.Start(b), manyPods(share3)
		p := fullNode(b, pods)
		connect(b, r, p)
		benchCreate(b, r, pods, func() { endAll(b, p, pods) })
	})
	b.Run("vernier-no-slice", func(b *testing.B) {
		r := nritest.Start(b)
		connect(b, r, fullNode(b, manyPods(share3)))
		benchCreate(b, r, []*api.PodSandbox{podOf("plain", "")}, func() {})
	})
}

// BenchmarkCreateContainerPaired asks both in turn, so that whatever else the
// machine does meets both, and reports the ratio of the medians: at most 1.5.
func BenchmarkCreateContainerPaired(b *testing.B) {
	pods := manyPods(share3)
	bare, ours := nritest.Start(b), nritest.Start(b)
	connectNoop(b, bare)
	p := fullNode(b, pods)
	connect(b, ours, p)
	var took [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		if i%len(pods) == 0 {
			b.StopTimer()
			endAll(b, p, pods)
			b.StartTimer()
		}
		for side, r := range []*nritest.Runtime{bare, ours} {
			c := kubeletContainer(pods[i%len(pods)])
			begun := time.Now()
			must.Get(r.Create(pods[i%len(pods)], c))(b)
			took[side] = append(took[side], time.Since(begun))
		}
	}
	for side := range took {
		slices.Sort(took[side])
	}
	noop, vernier := took[0][len(took[0])/2], took[1][len(took[1])/2]
	b.ReportMetric(float64(noop.Nanoseconds()), "noop-p50-ns")
	b.ReportMetric(float64(vernier.Nanoseconds()), "vernier-p50-ns")
	b.ReportMetric(float64(vernier)/float64(noop), "ratio")
}

// benchCreate creates a container of each pod in turn; between the rounds, and
// not counted, all of them end.
func benchCreate(b *testing.B, r *nritest.Runtime, pods []*api.PodSandbox, end func()) {
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(pods) == 0 {
			b.StopTimer()
			end()
			b.StartTimer()
		}
		pod := pods[i%len(pods)]
		must.Get(r.Create(pod, kubeletContainer(pod)))(b)
	}
}

// Devices of the node and slices of each.
const (
	benchDevices = 8
	benchSlices  = 32
)

// share3 is a share of which a device has room for benchSlices.
const share3 = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":3,"memMiB":2048}}}`

func slice3(pod *api.PodSandbox) v1alpha1.Slice {
	return v1alpha1.Slice{Pod: uid(pod), Owner: owner(pod), Ctr: "main", Core: 3, Mem: 2048}
}

func manyPods(shares string) []*api.PodSandbox {
	var pods []*api.PodSandbox
	for i := range benchDevices * benchSlices {
		pods = append(pods, podOf(fmt.Sprint("bench-", i), shares))
	}
	return pods
}

// delivered is a watch that has shown all.
type delivered struct{ *ledger.Cache }

func (delivered) Behind() bool { return false }

// fullNode is a node on which every pod has its slice, and all are prepared.
func fullNode(b *testing.B, pods []*api.PodSandbox) *Plugin {
	n := newNode(b)
	l := &v1alpha1.SliceLedger{}
	for d := range benchDevices {
		device := v1alpha1.DeviceLedger{
			UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", d), Core: 100, Mem: size,
		}
		n.gpus.more = append(n.gpus.more, v1alpha1.DeviceStatus{UUID: device.UUID, Mem: size})
		for s := range benchSlices {
			pod := pods[d*benchSlices+s]
			device.Slices = append(device.Slices, slice3(pod))
			placed := v1alpha1.Placement{Version: v1alpha1.Version, Node: "n", Containers: map[string]v1alpha1.PlacedShare{
				"main": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: device.UUID, Core: 3, MemMiB: 2048}}},
			}}
			document := must.Get(placed.Encode())(b)
			pod.Annotations[v1alpha1.AnnotationPlacement] = document
		}
		l.Spec.Devices = append(l.Spec.Devices, device)
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: device.UUID, Mem: size, Healthy: true})
	}
	cache := &ledger.Cache{}
	_, index := cache.Set(l)
	index.Each(func(k ledger.Key, grants []ledger.Grant) {
		must.Do(b, n.limiter.Prepare(mode.Container{Pod: k.Pod, Name: k.Container, Grants: grants}))
	})
	n.Plugin.Ledger = delivered{cache}
	return n.Plugin
}

// endAll ends every pod's container, as the runtime and the agent do.
func endAll(b *testing.B, p *Plugin, pods []*api.PodSandbox) {
	for _, pod := range pods {
		entry, entered := p.Table.Get(containerOf(pod, "main").Id)
		if !entered {
			continue
		}
		p.Table.Detach(entry.ID)
		must.Do(b, p.Modes[v1alpha1.ModeLimiter].Ended(entry.Container))
	}
}

// kubeletContainer has what the kubelet and containerd put into every container
// of a pod with a service: environment, mounts, labels, masks.
func kubeletContainer(pod *api.PodSandbox) *api.Container {
	c := containerOf(pod, "main", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	for i := range 20 {
		c.Env = append(c.Env, fmt.Sprintf("KUBERNETES_SERVICE_%d=tcp://10.96.0.1:443", i))
	}
	for _, path := range []string{"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup", "/etc/hosts",
		"/dev/termination-log", "/etc/hostname", "/etc/resolv.conf", "/dev/shm", "/var/run/secrets/kubernetes.io/serviceaccount"} {
		c.Mounts = append(c.Mounts, &api.Mount{Destination: path, Source: "/var/lib/kubelet/pods" + path, Type: "bind",
			Options: []string{"rbind", "rprivate", "ro"}})
	}
	c.Labels = map[string]string{"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": pod.Name,
		"io.kubernetes.pod.namespace": pod.Namespace, "io.kubernetes.pod.uid": pod.Uid}
	c.Args = []string{"python", "train.py", "--epochs", "10"}
	return c
}

// noop answers the requests that we answer, with nothing.
type noop struct{ synced chan struct{} }

func (n *noop) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(n.synced)
	return nil, nil
}

func (*noop) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, nil
}

func (*noop) ValidateContainerAdjustment(context.Context, *api.ValidateContainerAdjustmentRequest) error {
	return nil
}

func connectNoop(b *testing.B, r *nritest.Runtime) {
	conn := must.Get(net.Dial("unix", r.Socket))(b)
	n := &noop{synced: make(chan struct{})}
	// By our name, which the pods require.
	s := must.Get(stub.New(n, stub.WithConnection(conn), stub.WithPluginName(v1alpha1.NRIPluginName), stub.WithPluginIdx("10"),
		stub.WithLogger(logger{logr.Discard()}), stub.WithOnClose(func() {})))(b)
	must.Do(b, s.Start(context.Background()))
	b.Cleanup(s.Stop)
	<-n.synced
	r.Admitted()
}
