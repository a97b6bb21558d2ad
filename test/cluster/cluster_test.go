// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/must"
)

// TestMain lets the test binary play two other parts: a harness that is killed
// and a webhook.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
	}
	if os.Getenv(webhookEnv) != "" {
		serveWebhook()
	}
	os.Exit(m.Run())
}

// up starts a cluster that the end of the test takes down.
func up(t *testing.T, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	cfg.Progress = t.Output()
	// The start has a bound of its own; the cluster's life is the test's.
	c := must.Get(cluster.Up(t.Context(), cfg))(t)
	t.Cleanup(func() { must.Report(t, c.Down()) })
	return c
}

// await fails the test when a condition does not come true within two minutes.
func await(t *testing.T, what string, done func() (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s; last: %v", what, err)
		case <-tick.C:
		}
	}
}

func startPod(t *testing.T, c *cluster.Cluster, name, node string, edit ...func(*corev1.Container)) *corev1.Pod {
	t.Helper()
	container := corev1.Container{Name: "main", Image: cluster.BusyboxImage, ImagePullPolicy: corev1.PullNever}
	for _, e := range edit {
		e(&container)
	}
	grace := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node}, DNSPolicy: corev1.DNSDefault,
			TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{container},
		},
	}
	must.Get(c.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	await(t, "pod "+name+" Ready", func() (bool, error) {
		pod = getPod(t, c, name)
		return ready(pod), fmt.Errorf("%+v", pod.Status)
	})
	return pod
}

func getPod(t *testing.T, c *cluster.Cluster, name string) *corev1.Pod {
	t.Helper()
	return must.Get(c.Client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}))(t)
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func run(t *testing.T, c *cluster.Cluster, pod string, argv ...string) string {
	t.Helper()
	out := must.Get(c.Exec(t.Context(), "default", pod, "", argv...))(t)
	return strings.TrimSpace(out)
}

func TestPodsRunAndTalk(t *testing.T) {
	outside := t.TempDir()
	c := up(t, cluster.Config{Nodes: []cluster.NodeConfig{
		{
			Name: "n1", Labels: map[string]string{"vernier.dev/kind": "first"},
			Mounts: []cluster.Mount{
				{Source: "shared", Destination: "/run/shared"},
				{Source: outside, Destination: "/run/outside", ReadOnly: true},
			},
			Prepare: func(dir string) error { return os.Mkdir(filepath.Join(dir, "shared"), 0o755) },
		},
		{Name: "n2"},
	}})
	node := must.Get(c.Client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t)
	if got := node.Labels["vernier.dev/kind"]; got != "first" {
		t.Errorf("label of n1: %q", got)
	}
	one := startPod(t, c, "one", "n1", func(m *corev1.Container) {
		m.Command = []string{"/bin/sh", "-c", "echo said; echo hello >/tmp/greeting; exec httpd -f -p 8080 -h /tmp"}
		m.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}}
	})
	startPod(t, c, "two", "n2")

	if got := run(t, c, "two", "wget", "-qO-", "http://"+one.Status.PodIP+":8080/greeting"); got != "hello" {
		t.Errorf("pod on n2 read %q from the pod on n1", got)
	}
	run(t, c, "two", "sh", "-c", "echo | nc -w 60 10.252.0.1 443") // the API server, as every in-cluster client finds it
	await(t, "what the pod has said", func() (bool, error) {       // containerd copies it
		log, err := c.Logs(t.Context(), "default", "one", "")
		return log == "said\n", fmt.Errorf("log %q, error %w", log, err)
	})

	run(t, c, "one", "touch", "/run/shared/from-pod")
	if _, err := os.Stat(filepath.Join(c.Node("n1").Dir(), "shared", "from-pod")); err != nil {
		t.Errorf("a node's mount in its pods: %v", err)
	}
	if out, err := c.Exec(t.Context(), "default", "one", "", "touch", "/run/outside/from-pod"); err == nil {
		t.Errorf("a pod wrote to a read-only mount: %s", out)
	}
	if out, err := c.Exec(t.Context(), "default", "two", "", "test", "-e", "/run/shared"); err == nil {
		t.Errorf("the other node's pods have the mount as well: %s", out)
	}
	// A base spec carries a limit of 1024 files, which pods must not get from it.
	with, without := run(t, c, "one", "sh", "-c", "ulimit -n"), run(t, c, "two", "sh", "-c", "ulimit -n")
	if with != without {
		t.Errorf("files that a pod may open: %s with mounts, %s without", with, without)
	}
	_, err := c.Exec(t.Context(), "default", "two", "", "cat", "/nowhere")
	if err == nil || !strings.Contains(err.Error(), "can't open '/nowhere'") {
		t.Errorf("a failed command's error does not say why: %v", err)
	}
}

// What leaves the cluster as the next one needs it shares one.
func TestOnOneCluster(t *testing.T) {
	c := up(t, cluster.Config{})
	for _, test := range []struct {
		name string
		test func(*testing.T, *cluster.Cluster)
	}{
		{"ServiceAccountKubeconfig", testServiceAccountKubeconfig},
		{"Processes", testProcesses},
		{"RunningPodSurvivesRestarts", testRunningPodSurvivesRestarts},
		{"WebhookBehindService", testWebhookBehindService},
	} {
		t.Run(test.name, func(t *testing.T) { test.test(t, c) })
	}
}

func testRunningPodSurvivesRestarts(t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	before := startPod(t, c, "steady", n.Name).Status.ContainerStatuses[0].ContainerID
	for _, restart := range []struct {
		name string
		do   func() error
	}{
		{"kubelet", func() error { return n.RestartKubelet(t.Context()) }},
		{"containerd", func() error { return n.RestartContainerd(t.Context()) }},
		{"kubelet-killed", func() error {
			if err := n.Kubelet.Kill(t.Context()); err != nil {
				return err
			}
			return n.RestartKubelet(t.Context())
		}},
		{"containerd-killed", func() error {
			if err := n.Containerd.Kill(t.Context()); err != nil {
				return err
			}
			return n.RestartContainerd(t.Context())
		}},
	} {
		t.Run(restart.name, func(t *testing.T) {
			must.Do(t, restart.do())
			// A pod that starts now has gone the whole way through what was restarted.
			startPod(t, c, "after-"+restart.name, n.Name)
			status := getPod(t, c, "steady").Status.ContainerStatuses[0]
			if status.ContainerID != before || status.RestartCount != 0 || status.State.Running == nil {
				t.Errorf("the pod did not go on: container %s before, %+v now", before, status)
			}
			run(t, c, "steady", "true")
		})
	}
}

func testProcesses(t *testing.T, c *cluster.Cluster) {
	place := must.Get(c.AddPlace("aside"))(t)
	p := must.Get(c.StartProcess(cluster.Command{
		Name: "part", Place: place.Name, Env: []string{"WORD=green"},
		Argv: []string{"/bin/sh", "-c", `trap 'echo bye; exit' TERM; ip -brief address show eth0; echo "$WORD"; while :; do sleep 1 & wait $!; done`},
	}))(t)
	logHas := func(word string, times int) {
		t.Helper()
		await(t, fmt.Sprintf("%q %d times in the log", word, times), func() (bool, error) {
			data, err := os.ReadFile(p.Log)
			return strings.Count(string(data), word) == times, fmt.Errorf("%s %w", data, err)
		})
	}
	logHas("green", 1)
	logHas(place.IP, 1)
	must.Do(t, p.Restart(t.Context()))
	logHas("bye", 1)
	logHas("green", 2)
	first := p.ID()
	if err := p.Kill(t.Context()); err != nil || p.Running() || first.Running() {
		t.Errorf("after Kill: error %v, running %v", err, p.Running())
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("Stop of what has ended: %v", err)
	}
	must.Do(t, p.Start())
	logHas("green", 3)
	must.Do(t, p.Signal(syscall.SIGTERM))
	must.Do(t, p.Wait(t.Context()))
	if _, err := c.StartProcess(cluster.Command{Name: "part", Argv: []string{"/bin/true"}}); err == nil {
		t.Error("a second process of the same name was started")
	}
}
