// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// created brings a container with a 30 % slice to the point of its start.
func created(t *testing.T, n *testNode, r *nritest.Runtime) (*api.PodSandbox, *api.Container) {
	t.Helper()
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := containerOf(pod, "main")
	must.Get(r.Create(pod, c))(t)
	return pod, c
}

// What holds a slice is told as it is, and why nothing stronger does.
func TestStartGuarantee(t *testing.T) {
	cases := map[string]struct {
		change func(*testGPUs)
		memory v1alpha1.Guarantee
		note   string
	}{
		"driver limit": {func(*testGPUs) {}, v1alpha1.GuaranteeDriver, ""},
		"older driver": {func(g *testGPUs) {
			g.driver = v1alpha1.DriverStatus{MemoryLimitsReason: "driver 535 has no memory limits"}
		}, v1alpha1.GuaranteeCooperative, "driver 535"},
		"device without limits": {func(g *testGPUs) { g.setErr = device.ErrUnsupported }, v1alpha1.GuaranteeCooperative, "not supported"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			c.change(n.gpus)
			var said []string
			n.Plugin.Started = func(of PodRef, what string) { said = append(said, of.Name+"/"+of.Container+" "+what) }
			pod, ctr := created(t, n, r)
			if len(n.Table.Slices()) != 0 {
				t.Error("a container that does not run yet is in the status")
			}
			must.Do(t, r.StartContainer(pod, ctr))
			if want := "a/main GPU 0 (" + gpu0 + "): 30 % compute and 20,480 MiB, mode limiter; guarantee of memory: " + string(c.memory) + ", of compute: cooperative"; !slices.Equal(said, []string{want}) {
				t.Errorf("said %q, want %q", said, want)
			}
			got := n.Table.Slices()
			if len(got) != 1 || !strings.Contains(got[0].Note, c.note) || (c.note == "") != (got[0].Note == "") {
				t.Fatalf("status %+v, want a note with %q", got, c.note)
			}
			got[0].Note = ""
			want := v1alpha1.SliceStatus{
				Pod: uid(pod), Ctr: "main", UUID: gpu0, Container: ctr.Id, Mode: v1alpha1.ModeLimiter,
				Memory: c.memory, Compute: v1alpha1.GuaranteeCooperative,
			}
			if !reflect.DeepEqual(got[0], want) {
				t.Errorf("status %+v, want %+v", got[0], want)
			}
			if limit := n.gpus.limits[gpu0+"/cgroup/"+ctr.Id]; (limit == 20480) != (c.memory == v1alpha1.GuaranteeDriver) {
				t.Errorf("the driver holds %d MiB", limit)
			}
		})
	}
}

// Invariant 2: a limit that the driver refuses, or holds otherwise than asked,
// keeps the container from running.
func TestStartRefused(t *testing.T) {
	cases := map[string]struct {
		change func(*testGPUs)
		says   string
	}{
		"driver refuses":       {func(g *testGPUs) { g.setErr = errors.New("no permission") }, "no permission"},
		"driver holds more":    {func(g *testGPUs) { g.falsify = func(m v1alpha1.MiB) v1alpha1.MiB { return m + 1 } }, "20481 MiB"},
		"driver holds nothing": {func(g *testGPUs) { g.falsify = func(v1alpha1.MiB) v1alpha1.MiB { return 0 } }, "0 MiB"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			c.change(n.gpus)
			var said []string
			n.Plugin.Started = func(of PodRef, what string) { said = append(said, of.Name+"/"+of.Container+" "+what) }
			pod, ctr := created(t, n, r)
			refusedFor(t, r.StartContainer(pod, ctr), "limits cannot be set", c.says)
		})
	}
}

// Invariant 2: a container that has slices and did not come through us is not
// started by us either.
func TestStartUnprepared(t *testing.T) {
	_, r, pod := granted(t)
	refusedFor(t, r.StartContainer(pod, containerOf(pod, "main")), "delete the pod")
	if err := r.StartContainer(podOf("plain", ""), containerOf(podOf("plain", ""), "main")); err != nil {
		t.Errorf("plain: %v", err)
	}
}

// Invariant 6: the end of a container is taken note of however it is told, and as
// often; a failed creation is undone.
func TestEnd(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *nritest.Runtime, *api.PodSandbox, *api.Container){
		"stop": func(t *testing.T, r *nritest.Runtime, p *api.PodSandbox, c *api.Container) { r.StopContainer(t, p, c) },
		"remove": func(t *testing.T, r *nritest.Runtime, p *api.PodSandbox, c *api.Container) {
			r.RemoveContainer(t, p, c)
		},
		"without sandbox": func(t *testing.T, r *nritest.Runtime, _ *api.PodSandbox, c *api.Container) {
			// The runtime may have lost the sandbox when the exit reaches it.
			r.StopContainer(t, &api.PodSandbox{Id: c.PodSandboxId}, c)
		},
		"sandbox": func(t *testing.T, r *nritest.Runtime, p *api.PodSandbox, _ *api.Container) {
			must.Report(t, r.Adaptation.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: p}))
		},
		"sandbox removed": func(t *testing.T, r *nritest.Runtime, p *api.PodSandbox, _ *api.Container) {
			must.Report(t, r.Adaptation.RemovePodSandbox(t.Context(), &api.RemovePodSandboxRequest{Pod: p}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			pod, c := created(t, n, r)
			if n.Table.Fence(uid(pod)) {
				t.Fatal("Invariant 1: a pod with a container is fenced")
			}
			end(t, r, pod, c)
			if n.Table.Holds(uid(pod)) {
				t.Error("Invariant 6: the container is gone and still entered")
			}
			r.StopContainer(t, pod, c)
			r.RemoveContainer(t, pod, c)
			if !n.Table.Fence(uid(pod)) {
				t.Error("Invariant 6: the container is gone and its pod is not fenced")
			}
		})
	}
}
