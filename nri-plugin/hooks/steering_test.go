// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// What admission takes out of env, the node replaces where the image or envFrom brings it;
// what ordinary CUDA images carry stays as it is.
func TestSteeringVariables(t *testing.T) {
	const pipe, visible, mark = "CUDA_MPS_PIPE_DIRECTORY", v1alpha1.EnvCUDADevices, v1alpha1.EnvSlice
	cuda := []string{"PATH=/usr/local/cuda/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"}
	many := make([]string, maxReplaced+1)
	for i := range many {
		many[i] = fmt.Sprintf("CUDA_MPS_%d=1", i)
	}
	for name, c := range map[string]struct {
		env []string
		// want is what the container gets beside its mark and void, "" for nothing of the name.
		want map[string]string
		// says is in the event, refused in the refusal.
		says, refused []string
	}{
		"a CUDA image":              {env: cuda},
		"pipe":                      {env: []string{pipe + "=/hostile"}, want: map[string]string{pipe: "/tmp/nvidia-mps"}, says: []string{pipe, "envFrom", "remove it"}},
		"limits":                    {env: []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=9=1G"}, want: map[string]string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""}, says: []string{"PINNED"}},
		"pipe twice":                {env: []string{pipe + "=/image", "A=b", pipe + "=/pod"}, refused: []string{pipe, "Remove it from the pod", "envFrom"}},
		"devices within":            {env: []string{visible + "=0"}},
		"its own device":            {env: []string{visible + "=" + gpu0}},
		"no device":                 {env: []string{visible + "="}},
		"devices beyond":            {env: []string{visible + "=3"}, want: map[string]string{visible: "0"}, says: []string{visible}},
		"another's device":          {env: []string{visible + "=" + gpu1}, want: map[string]string{visible: "0"}, says: []string{visible}},
		"image beyond, pod within":  {env: []string{visible + "=3", visible + "=0"}},
		"image within, pod beyond":  {env: []string{visible + "=0", visible + "=3"}, refused: []string{visible, "Remove it from the pod"}},
		"preload":                   {env: []string{"LD_PRELOAD=libjemalloc.so"}, says: []string{"LD_PRELOAD", "is kept"}},
		"mark":                      {env: []string{mark + "=uid-a"}, refused: []string{mark, "ConfigMap or Secret"}},
		"a Service of like a name":  {env: []string{"VERNIER_SLICE_PORT=tcp://10.0.0.1:80", "VERNIER_PORT=1"}},
		"many":                      {env: many, refused: []string{"more than 64"}},
		"a long name":               {env: []string{"CUDA_MPS_" + strings.Repeat("x", 1<<20) + "=1"}, want: map[string]string{"CUDA_MPS_" + strings.Repeat("x", 1<<20): ""}, says: []string{"CUDA_MPS_xxx"}},
		"an entry without a value":  {env: []string{pipe}, want: map[string]string{pipe: "/tmp/nvidia-mps"}, says: []string{pipe}},
		"many of no concern to us":  {env: append(strings.Split(strings.Repeat("A=1,", 50_000), ","), cuda...)},
		"one name 50,000 times":     {env: strings.Split(strings.Repeat(pipe+"=/x,", 50_000)+"A=1", ","), refused: []string{pipe}},
		"both, and one to be known": {env: []string{pipe + "=/x", visible + "=1", "LD_AUDIT=x"}, want: map[string]string{pipe: "/tmp/nvidia-mps", visible: "0"}, says: []string{pipe, visible, "LD_AUDIT"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r, pod := granted(t)
			got, err := r.Create(pod, containerOf(pod, "main", c.env...))
			if c.refused != nil {
				refusedFor(t, err, append(c.refused, "container main of pod team/a")...)
				return
			}
			must.Do(t, err)
			have := env(got)
			delete(have, v1alpha1.EnvSlice)
			delete(have, v1alpha1.EnvVisibleDevices)
			if fmt.Sprint(have) != fmt.Sprint(c.want) {
				t.Errorf("environment %.200q, want %.200q", fmt.Sprint(have), fmt.Sprint(c.want))
			}
			said := strings.Join(n.events.said, "\n")
			if len(n.events.said) > 1 || (said != "") != (c.says != nil) || len(said) > 1024 {
				t.Errorf("said %.2000q", said)
			}
			for _, part := range c.says {
				if !strings.Contains(said, ReasonVariables) || !strings.Contains(said, part) {
					t.Errorf("said %q, without %q", said, part)
				}
			}
		})
	}
}

// The event says where a variable stands: in the pod's own env, or in what admission does not see.
func TestSteeringVariables_WhereTheyStand(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	n.Plugin.Env = func(ref PodRef) []string {
		if ref != (PodRef{Namespace: "team", Name: "a", UID: "uid-a", Container: "main"}) {
			t.Errorf("asked for %+v", ref)
		}
		return []string{v1alpha1.EnvCUDADevices, "LD_AUDIT"}
	}
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	must.Get(r.Create(pod, containerOf(pod, "main", v1alpha1.EnvCUDADevices+"=7", "CUDA_MPS_PIPE_DIRECTORY=/x", "LD_AUDIT=x", "LD_PRELOAD=x")))(t)
	said := strings.Join(n.events.said, "\n")
	for _, part := range []string{
		`container main: of its env in the pod "CUDA_VISIBLE_DEVICES" would lead past its share`,
		`; of its image, or of a ConfigMap or Secret by envFrom, "CUDA_MPS_PIPE_DIRECTORY" would lead past its share`,
		`; of its env in the pod "LD_AUDIT" is kept`, `; of its image, or of a ConfigMap or Secret by envFrom, "LD_PRELOAD" is kept`} {
		if !strings.Contains(said, part) {
			t.Errorf("said %q, without %q", said, part)
		}
	}
	if len(said) > 1024 {
		t.Errorf("said %d bytes", len(said))
	}
}

// What the slice's mode sets itself stays.
func TestSteeringVariables_WhenTheModeHasThem(t *testing.T) {
	s := must.Get(steers(&api.Container{Env: []string{"CUDA_MPS_PIPE_DIRECTORY=/hostile", "CUDA_MPS_CLIENT_PRIORITY=1"}}, nil))(t)
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("CUDA_MPS_PIPE_DIRECTORY", "/ours")
	s.adjust(adjust)
	if have := env(adjust); len(adjust.Env) != 2 || have["CUDA_MPS_PIPE_DIRECTORY"] != "/ours" || have["CUDA_MPS_CLIENT_PRIORITY"] != "0" {
		t.Errorf("adjusted to %v", adjust.Env)
	}
}

// A container without a slice keeps its variables; beside a share it may not bear our mark.
func TestSteeringVariables_WhenWithoutASlice(t *testing.T) {
	n, r := connected(t)
	plain, beside := podOf("plain", ""), podOf("beside", share30)
	for _, pod := range []*api.PodSandbox{plain, beside} {
		got := must.Get(r.Create(pod, containerOf(pod, "sidecar", "CUDA_MPS_PIPE_DIRECTORY=/x", "CUDA_VISIBLE_DEVICES=7", "LD_PRELOAD=x")))(t)
		if len(got.GetEnv()) != 1 || len(n.events.said) != 0 {
			t.Errorf("pod %s: environment %v, said %q", pod.Name, env(got), n.events.said)
		}
	}
	if _, err := r.Create(plain, containerOf(plain, "marked", v1alpha1.EnvSlice+"=x")); err != nil {
		t.Error(err)
	}
	_, err := r.Create(beside, containerOf(beside, "marked", v1alpha1.EnvSlice+"=x"))
	refusedFor(t, err, v1alpha1.EnvSlice)
}

// Another plugin does not put back what was taken out, nor what was never there.
func TestVetoSteeringVariables(t *testing.T) {
	for name, c := range map[string]struct {
		env   []string
		other func(*api.ContainerAdjustment)
		says  string
	}{
		"put back": {[]string{"CUDA_MPS_PIPE_DIRECTORY=/x"}, func(a *api.ContainerAdjustment) {
			a.RemoveEnv("CUDA_MPS_PIPE_DIRECTORY")
			a.AddEnv("CUDA_MPS_PIPE_DIRECTORY", "/x")
		}, "CUDA_MPS_PIPE_DIRECTORY"},
		"taken away": {[]string{"CUDA_MPS_PIPE_DIRECTORY=/x"}, func(a *api.ContainerAdjustment) { a.RemoveEnv("CUDA_MPS_PIPE_DIRECTORY") }, "CUDA_MPS_PIPE_DIRECTORY"},
		"new":        {nil, func(a *api.ContainerAdjustment) { a.AddEnv("CUDA_MPS_PIPE_DIRECTORY", "/x") }, "another NRI plugin sets"},
		"beyond":     {nil, func(a *api.ContainerAdjustment) { a.AddEnv("CUDA_VISIBLE_DEVICES", gpu1) }, "another NRI plugin sets"},
		"within":     {nil, func(a *api.ContainerAdjustment) { a.AddEnv("CUDA_VISIBLE_DEVICES", "0") }, ""},
		"preload":    {nil, func(a *api.ContainerAdjustment) { a.AddEnv("LD_PRELOAD", "x") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := connected(t)
			connectOther(t, r, c.other)
			pod := podOf("a", share30)
			n.ledger.grant(gpu0, slice30(pod))
			_, err := r.Create(pod, containerOf(pod, "main", c.env...))
			if c.says == "" {
				must.Report(t, err)
				return
			}
			refusedFor(t, err, c.says)
		})
	}
}

// NRI drops the removal of what no plugin has set. Were it passed on, variables could be
// removed rather than replaced.
func TestNRIRemovesNoVariableOfTheImage(t *testing.T) {
	r := nritest.Start(t)
	connectOther(t, r, func(a *api.ContainerAdjustment) { a.RemoveEnv("A") })
	pod := podOf("a", "")
	got, err := r.Create(pod, containerOf(pod, "main", "A=1"))
	if err != nil || len(got.GetEnv()) != 0 {
		t.Errorf("adjusted to %v, %v", got.GetEnv(), err)
	}
}

// Invariant 3: whatever the environment says, it ends up asking for nothing, or
// the container is refused with the variable and the remedy.
func TestMaskVisibleDevices(t *testing.T) {
	const name = v1alpha1.EnvVisibleDevices
	for text, c := range map[string]struct {
		env     []string
		refused bool
	}{
		"none":                   {nil, false},
		"the image's":            {[]string{name + "=all"}, false},
		"image and pod":          {[]string{name + "=all", "A=b", name + "=GPU-1"}, true},
		"the pod asks for none":  {[]string{name + "=all", name + "=none"}, false},
		"the pod asks for void":  {[]string{name + "=all", name + "=void"}, false},
		"the pod empties it":     {[]string{name + "=all", name + "="}, false},
		"void first":             {[]string{name + "=void", name + "=0"}, true},
		"another of like a name": {[]string{name + "=all", name + "_X=all"}, false},
	} {
		adjust := &api.ContainerAdjustment{}
		err := maskVisibleDevices(&api.Container{Env: c.env}, adjust)
		if (err != nil) != c.refused {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "Remove it from the pod") {
				t.Errorf("%s: refused without the remedy: %v", text, err)
			}
			continue
		}
		if len(adjust.Env) != 1 || adjust.Env[0].Key != name || adjust.Env[0].Value != v1alpha1.EnvVisibleDevicesVoid {
			t.Errorf("%s: adjusted to %v", text, adjust.Env)
		}
	}
}
