// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
)

// Process is one part of Vernier, as one replica, where it runs. When it ends itself it
// is started again, as a kubelet would; what a test has ended or frozen stays so until
// the test itself has it run again.
type Process struct {
	*cluster.Process
	Place *cluster.Place

	metricsPort  string
	metricsToken string

	// changing: one at a time ends or starts it.
	changing sync.Mutex
	// left: a test has its hands on it.
	left bool
}

// Kill ends it as a power cut would, and returns when it is gone.
func (p *Process) Kill() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.left = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.Process.Kill(ctx)
}

// Stop has it end itself, and returns when it is gone.
func (p *Process) Stop(ctx context.Context) error {
	p.Leave()
	return p.Process.Stop(ctx)
}

// Freeze stops it without ending it: its sockets stay open and nobody reads them.
func (p *Process) Freeze() error {
	p.Leave()
	return p.Signal(syscall.SIGSTOP)
}

// Leave has it stay ended when it ends itself, until EnsureRunning.
func (p *Process) Leave() {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.left = true
}

// EnsureRunning starts it unless it runs, and lets it go on if it was frozen.
func (p *Process) EnsureRunning() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.left = false
	if p.Running() {
		return p.Signal(syscall.SIGCONT)
	}
	return p.Start()
}

// lookAfter starts it if it has ended itself.
func (p *Process) lookAfter() (started bool, err error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.left || p.Running() {
		return false, nil
	}
	return true, p.Start()
}

// lookAfterParts starts parts that have ended themselves, until ctx ends: an allocator
// does on a busy machine, when it could not renew its lease in time.
func (s *System) lookAfterParts(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, p := range s.Parts() {
			if started, err := p.lookAfter(); started {
				s.step("%s had ended itself and is started again (%v)", p.Name, err)
			}
		}
	}
}

// Parts are all processes of Vernier beside the cluster's own.
func (s *System) Parts() []*Process {
	parts := append([]*Process{}, s.Webhooks...)
	parts = append(parts, s.Allocators...)
	for _, n := range s.Nodes {
		if n.Agent != nil {
			parts = append(parts, n.Agent)
		}
	}
	return parts
}

// Node finds a node by its name.
func (s *System) Node(name string) *Node {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	panic("no node " + name)
}

const (
	webhookPort = 9443
	agentHealth = 9401
)

// startParts starts every part with the rights of its own service account.
func (s *System) startParts(ctx context.Context) error {
	if err := s.makeMetricsToken(ctx); err != nil {
		return err
	}
	var places []*cluster.Place
	for i := range 2 {
		p, err := s.startReplica(ctx, fmt.Sprintf("webhook-%d", i), "webhook", v1alpha1.WebhookServiceAccount,
			fmt.Sprintf("--port=%d", webhookPort))
		if err != nil {
			return err
		}
		s.Webhooks = append(s.Webhooks, p)
		places = append(places, p.Place)
	}
	service, err := s.Kube.CoreV1().Services(v1alpha1.SystemNamespace).Get(ctx, v1alpha1.WebhookServiceAccount, metav1.GetOptions{})
	if err != nil {
		return err
	}
	err = s.Cluster.PublishEndpoints(ctx, service.Namespace, service.Name, service.Spec.Ports[0].Name, webhookPort, places...)
	if err != nil {
		return err
	}
	for i := range 2 {
		p, err := s.startReplica(ctx, fmt.Sprintf("allocator-%d", i), "allocator", v1alpha1.AllocatorServiceAccount)
		if err != nil {
			return err
		}
		s.Allocators = append(s.Allocators, p)
	}
	for i, n := range s.Cluster.Nodes {
		node := &Node{Node: n, GPU: s.gpus[i], args: s.args[i]}
		if err := s.startAgent(ctx, node); err != nil {
			return err
		}
		s.Nodes = append(s.Nodes, node)
	}
	return nil
}

// startReplica runs a part's program in a place of its own, as a pod would be.
func (s *System) startReplica(ctx context.Context, name, part, account string, args ...string) (*Process, error) {
	flags, err := s.manifests.Flags(part)
	if err != nil {
		return nil, err
	}
	place, err := s.Cluster.AddPlace(name)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := s.Cluster.ServiceAccountKubeconfig(ctx, v1alpha1.SystemNamespace, account)
	if err != nil {
		return nil, err
	}
	argv := slices.Concat([]string{filepath.Join(s.bin, "vernier-"+part), "--kubeconfig=" + kubeconfig}, args, flags)
	p, err := s.Cluster.StartProcess(cluster.Command{
		Name: name, Place: name, Argv: argv, Env: []string{"POD_NAME=" + name, "POD_NAMESPACE=" + v1alpha1.SystemNamespace},
	})
	if err != nil {
		return nil, err
	}
	return &Process{Process: p, Place: place, metricsPort: replicaMetrics, metricsToken: s.metricsToken}, nil
}

func (s *System) startAgent(ctx context.Context, n *Node) error {
	kubeconfig, err := s.Cluster.NodeServiceAccountKubeconfig(ctx, v1alpha1.SystemNamespace, v1alpha1.NodeServiceAccount, n.Name)
	if err != nil {
		return err
	}
	flags, err := s.manifests.Flags("node")
	if err != nil {
		return err
	}
	p, err := s.Cluster.StartProcess(cluster.Command{
		// Containerd finds what it mounts, as with mount propagation from its pod.
		Name: "agent-" + n.Name, Place: n.Name, Mounts: true,
		Argv: slices.Concat([]string{
			filepath.Join(s.bin, "vernier-node"),
			"--kubeconfig=" + kubeconfig, "--node-name=" + n.Name,
			"--nri-socket=" + n.NRISocket(), "--cdi-dir=" + n.CDIDir(),
			"--state-dir=" + filepath.Join(n.Dir(), "vernier"),
			"--driver-root=" + n.GPU.DriverRoot, "--dev-root=" + n.GPU.DevRoot,
			"--limiter-library=" + filepath.Join(s.bin, "libvgpu.so"),
			fmt.Sprintf("--health-addr=127.0.0.1:%d", agentHealth), "--metrics-addr=" + agentMetrics,
			"--cdi-hook=" + filepath.Join(s.bin, "vernier-cdi-hook"),
			// In the cluster's own group they end with it.
			"--mps-cgroup=",
		}, n.args, flags),
		Env: n.GPU.Env(),
	})
	if err != nil {
		return err
	}
	n.Agent = &Process{Process: p, Place: n.Place, metricsPort: agentMetrics, metricsToken: s.metricsToken}
	pod := AgentPod(n.Name)
	pod.Spec.Containers[0].Image = DemoImage
	pod.Spec.Containers[0].Command = []string{"/bin/sleep", "1000000"}
	_, err = s.Kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// AgentPod stands in for the pod of a node agent that runs beside the cluster: it has the
// labels of the chart's, is ready as long as the agent says so to the kubelet, which asks as
// the chart has it, and shares the node's network, so that what connects to it reaches the agent.
func AgentPod(node string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "vernier-node-" + node,
			Labels: map[string]string{"app.kubernetes.io/name": "vernier", "app.kubernetes.io/component": "node"}},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, ServiceAccountName: v1alpha1.NodeServiceAccount, TerminationGracePeriodSeconds: &grace,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "vernier-node", Image: "none",
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Port: intstr.FromInt32(agentHealth), Path: "/readyz"}}},
			}},
		},
	}
}
