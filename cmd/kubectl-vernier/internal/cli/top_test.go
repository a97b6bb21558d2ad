// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// What a node agent serves, as Prometheus writes it.
const scraped = `# TYPE container_accelerator_memory_total_bytes gauge
container_accelerator_memory_total_bytes{node="gpu-1",namespace="team-a",pod="train",container="main",make="nvidia",model="A100",acc_id="GPU-aaaaaaaa-0000"} 1.073741824e+10
container_accelerator_memory_total_bytes{node="gpu-1",namespace="team-b",pod="note",container="main",make="nvidia",model="A100",acc_id="GPU-aaaaaaaa-0000"} 1.048576e+06
# TYPE container_accelerator_memory_used_bytes gauge
container_accelerator_memory_used_bytes{node="gpu-1",namespace="team-a",pod="train",container="main",make="nvidia",model="A100",acc_id="GPU-aaaaaaaa-0000"} 3.145728e+09
# TYPE container_accelerator_duty_cycle gauge
container_accelerator_duty_cycle{node="gpu-1",namespace="team-a",pod="train",container="main",make="nvidia",model="A100",acc_id="GPU-aaaaaaaa-0000"} 29.6
# TYPE vernier_container_compute_limit_ratio gauge
vernier_container_compute_limit_ratio{node="gpu-1",namespace="team-a",pod="train",container="main",uuid="GPU-aaaaaaaa-0000"} 0.3
# TYPE vernier_node_nvml_up gauge
vernier_node_nvml_up{node="gpu-1"} 1
`

func agent(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1alpha1.SystemNamespace, Labels: agentLabels}, Spec: corev1.PodSpec{NodeName: node}}
}

func TestTop(t *testing.T) {
	for args, want := range map[string]string{
		"top -A": `NAMESPACE   POD     CONTAINER   NODE    GPU            MEM(MiB)     DUTY-CYCLE(%)   QUOTA(%)
team-a      train   main        gpu-1   GPU-aaaaaaaa   3000/10240   30              30
team-b      note    main        gpu-1   GPU-aaaaaaaa   0/1          -               -
`,
		"top -n team-b --no-headers": "team-b   note   main   gpu-1   GPU-aaaaaaaa   0/1   -   -\n",
		"top -n team-c":              "",
	} {
		var out, errOut bytes.Buffer
		c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, out: &out, errOut: &errOut,
			connect: func() (client.Client, error) {
				return fakeClient(t, agent("vernier-node-1", "gpu-1"), agent("vernier-node-2", "gpu-2"), agent("vernier-node-3", "gpu-3")), nil
			},
			scrape: func(_ context.Context, pod string) ([]byte, error) {
				switch pod {
				case "vernier-node-2":
					return nil, errors.New("connection refused")
				case "vernier-node-3":
					return nil, errors.New("error upgrading connection: pods is forbidden")
				}
				return []byte(scraped), nil
			}}
		root := c.root()
		root.SetArgs(strings.Fields(args))
		must.Do(t, root.ExecuteContext(t.Context()))
		if out.String() != want {
			t.Errorf("%s prints\n%s\nwant\n%s", args, out.String(), want)
		}
		if !strings.Contains(errOut.String(), "node gpu-2 is left out: connection refused\nnode gpu-3 is left out: error upgrading connection: pods is forbidden; the role vernier-top allows it: `kubectl -n vernier-system create rolebinding") || want == "" && !strings.Contains(errOut.String(), "No container uses a slice in namespace team-c") {
			t.Errorf("%s says %q", args, errOut.String())
		}
	}
}

// An agent that never answers, as one whose driver hangs, keeps nobody from the others.
func TestTopBesideAnAgentThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errOut bytes.Buffer
		c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, out: &out, errOut: &errOut,
			connect: func() (client.Client, error) {
				return fakeClient(t, agent("vernier-node-1", "gpu-1"), agent("vernier-node-2", "gpu-2")), nil
			},
			scrape: func(ctx context.Context, pod string) ([]byte, error) {
				if pod == "vernier-node-1" {
					return []byte(scraped), nil
				}
				<-ctx.Done()
				return nil, fmt.Errorf("reading: %w", ctx.Err())
			}}
		root := c.root()
		root.SetArgs([]string{"top", "-A", "--no-headers"})
		must.Do(t, root.ExecuteContext(t.Context()))
		if !strings.Contains(out.String(), "train") || errOut.String() != "node gpu-2 is left out: no answer within 15s\n" {
			t.Errorf("prints %q, says %q", out.String(), errOut.String())
		}
	})
}

// Nobody to ask is not the same as nothing in use.
func TestTopWithoutAgents(t *testing.T) {
	c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, out: &bytes.Buffer{}, errOut: &bytes.Buffer{},
		connect: func() (client.Client, error) { return fakeClient(t), nil }}
	root := c.root()
	root.SetArgs([]string{"top", "-A"})
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "no pod of the node agent") {
		t.Errorf("without agents top says %v", err)
	}
}
