// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/nritest"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// A container whose pod was written for gpushare finds the variables that gpushare
// would have set, over those of its image.
func TestCreateInADialect(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	pod.Annotations[v1alpha1.AnnotationDialect] = v1alpha1.DialectGPUShareGiB
	n.ledger.grant(gpu1, slice30(pod))
	got, err := r.Create(pod, containerOf(pod, "main", "ALIYUN_COM_GPU_MEM_IDX=7"))
	if err != nil {
		t.Fatal(err)
	}
	have := env(got)
	if have["ALIYUN_COM_GPU_MEM_IDX"] != "1" || have["ALIYUN_COM_GPU_MEM_DEV"] != "80" || have["ALIYUN_COM_GPU_MEM_CONTAINER"] != "20" {
		t.Errorf("environment %v", have)
	}
}

// A container with a slice gets its device, its mark and its limits, and NVIDIA's
// own runtime is told to add nothing.
func TestCreateWithSlice(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := containerOf(pod, "main", v1alpha1.EnvVisibleDevices+"=all")

	got, err := r.Create(pod, c)
	if err != nil {
		t.Fatal(err)
	}
	wantEnv := map[string]string{v1alpha1.EnvSlice: pod.Uid, v1alpha1.EnvVisibleDevices: v1alpha1.EnvVisibleDevicesVoid}
	if !reflect.DeepEqual(env(got), wantEnv) {
		t.Errorf("environment %v, want %v", env(got), wantEnv)
	}
	if want := []string{"vernier.dev/gpu=" + gpu0}; !reflect.DeepEqual(cdiNames(got), want) {
		t.Errorf("CDI devices %v, want %v", cdiNames(got), want)
	}
	mounts := map[string]string{}
	for _, m := range got.GetMounts() {
		mounts[m.GetDestination()] = m.GetSource()
		want := "ro"
		if m.GetDestination() == layout.CountersPath {
			want = "rw"
		}
		if m.GetOptions()[1] != want {
			t.Errorf("mount %s is %v, want %s", m.GetDestination(), m.GetOptions(), want)
		}
		if _, err := os.Stat(m.GetSource()); err != nil {
			t.Errorf("mount %s: %v", m.GetDestination(), err)
		}
	}
	own := mounts[layout.Folder]
	if filepath.Dir(own) != filepath.Join(n.state, pod.Uid, "main") {
		t.Errorf("its folder is %s", own)
	}
	wantMounts := map[string]string{
		"/etc/ld.so.preload":          filepath.Join(own, "ld.so.preload"),
		"/usr/local/vernier":          own,
		"/usr/local/vernier/counters": filepath.Join(own, "counters"),
	}
	if !reflect.DeepEqual(mounts, wantMounts) {
		t.Errorf("mounts %v, want %v", mounts, wantMounts)
	}
	if text, err := os.ReadFile(filepath.Join(own, "libvgpu.so")); err != nil || string(text) != "library" {
		t.Errorf("library %q, %v", text, err)
	}
	limits, err := layout.ReadFile(filepath.Join(own, "limits"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []layout.DeviceLimit{{UUID: gpu0, Core: 30, MemoryBytes: 20480 << 20}}; !reflect.DeepEqual(limits.Devices, want) {
		t.Errorf("limits %v, want %v", limits.Devices, want)
	}
	preload, err := os.ReadFile(mounts["/etc/ld.so.preload"])
	if err != nil || string(preload) != "/usr/local/vernier/libvgpu.so\n" {
		t.Errorf("preload file %q, %v", preload, err)
	}
}

// An exclusive container gets whole devices and nothing in its processes.
func TestCreateExclusive(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", `{"version":"v1alpha1","containers":{"main":{"gpus":2,"core":100,"memPercent":100}}}`)
	whole := v1alpha1.Slice{Pod: uid(pod), Owner: owner(pod), Ctr: "main", Core: 100, Mem: size, Mode: v1alpha1.ModeExclusive}
	n.ledger.grant(gpu0, whole)
	n.ledger.grant(gpu1, whole)
	c := containerOf(pod, "main")
	got, err := r.Create(pod, c)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"vernier.dev/gpu=" + gpu0, "vernier.dev/gpu=" + gpu1}; !reflect.DeepEqual(cdiNames(got), want) {
		t.Errorf("CDI devices %v, want %v", cdiNames(got), want)
	}
	if len(got.GetMounts()) != 0 {
		t.Errorf("mounts %v", got.GetMounts())
	}
	if err := r.StartContainer(pod, c); err != nil {
		t.Fatal(err)
	}
	for _, s := range n.Table.Slices() {
		if s.Memory != v1alpha1.GuaranteeDevice || s.Compute != v1alpha1.GuaranteeDevice || s.Mode != v1alpha1.ModeExclusive {
			t.Errorf("status %+v", s)
		}
	}
	if len(n.Table.Slices()) != 2 {
		t.Errorf("%d slices in the status, want 2", len(n.Table.Slices()))
	}
}

// Invariant 3: a container without a slice gets nothing from NVIDIA's runtime,
// whatever its image says, in a pod without shares and beside one with.
func TestCreateWithoutSlice(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	sharing := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(sharing))
	for name, c := range map[string]struct {
		pod *api.PodSandbox
		ctr string
	}{
		"plain pod":                   {podOf("plain", ""), "main"},
		"other container of a sharer": {sharing, "sidecar"},
	} {
		got, err := r.Create(c.pod, containerOf(c.pod, c.ctr, v1alpha1.EnvVisibleDevices+"=all"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := map[string]string{v1alpha1.EnvVisibleDevices: v1alpha1.EnvVisibleDevicesVoid}
		if !reflect.DeepEqual(env(got), want) || len(got.GetCDIDevices()) != 0 || len(got.GetMounts()) != 0 {
			t.Errorf("Invariant 3: %s got %v", name, got)
		}
	}
}

// What a privileged container reaches is not ours to give or to withhold.
func TestCreatePrivileged(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	plain := podOf("plain", "")
	c := privileged(containerOf(plain, "main"))
	c.Linux.Devices = []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
	if got, err := r.Create(plain, c); err != nil || len(env(got)) != 0 {
		t.Errorf("plain: %v, %v", got, err)
	}
	sharing := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(sharing))
	_, err := r.Create(sharing, privileged(containerOf(sharing, "main")))
	refusedFor(t, err, "privileged", "remove")
}

// Invariant 2: what cannot be confirmed is not created, and the text says what
// was the matter.
func TestCreateRefused(t *testing.T) {
	cases := map[string]struct {
		shares string
		change func(*testNode, *api.PodSandbox)
		says   []string
	}{
		"forged annotation": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) { n.ledger.watched = v1alpha1.SliceLedger{} },
			says:   []string{"ledger", "no slice", "create the pod again"},
		},
		"annotation asks for more": {
			shares: `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":90,"memPercent":25}}}`,
			says:   []string{"90 core asked, 30 granted"},
		},
		"annotation asks for more memory": {
			shares: `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memMiB":20481}}}`,
			says:   []string{"20481 MiB asked, 20480 granted"},
		},
		"annotation asks for more devices": {
			shares: `{"version":"v1alpha1","containers":{"main":{"gpus":2,"core":30,"memPercent":25}}}`,
			says:   []string{"2 GPUs asked, 1 granted"},
		},
		"annotation is no document": {
			shares: `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memPercent":25,"root":true}}}`,
			says:   []string{v1alpha1.AnnotationShares, "root"},
		},
		"ledger unreadable": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) {
				n.ledger.watched, n.ledger.err = v1alpha1.SliceLedger{}, errors.New("connection refused")
			},
			says: []string{"connection refused", "API server"},
		},
		"device ill": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) { n.gpus.ill[gpu0] = "Xid 79" },
			says:   []string{"Xid 79"},
		},
		"device in MIG mode": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) {
				n.gpus.mig = map[string]v1alpha1.MIGState{gpu0: v1alpha1.MIGEnabled}
			},
			says: []string{gpu0, "MIG mode", "delete the pod"},
		},
		// As when its pod was moved here and the one before it never left.
		"device in use by more than the ledger knows": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) {
				stray := podOf("stray", "")
				grants := []ledger.Grant{{UUID: gpu0, DeviceMem: size, Core: 71, Mem: 1, PodCore: 71, PodMem: 1, Mode: v1alpha1.ModeLimiter}}
				if err := n.Table.Attach(attach.Entry{Container: mode.Container{
					Pod: uid(stray), Owner: owner(stray), Name: "main", ID: "stray", Grants: grants,
				}}); err != nil {
					panic(err)
				}
			},
			says: []string{gpu0, "pod team/stray (main) holds 71 %", "delete the pod"},
		},
		"slices given back": {
			shares: share30,
			change: func(n *testNode, pod *api.PodSandbox) { n.Table.Fence(uid(pod)) },
			says:   []string{"given back", "delete the pod"},
		},
		"mode unknown": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) { n.ledger.watched.Spec.Devices[0].Slices[0].Mode = "mps" },
			says:   []string{"mode mps", "update vernier-node"},
		},
		"state directory gone": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) {
				if err := errors.Join(os.RemoveAll(n.state), os.WriteFile(n.state, nil, 0o600)); err != nil {
					panic(err)
				}
			},
			says: []string{"state directory"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			connect(t, r, n.Plugin)
			pod := podOf("a", c.shares)
			n.ledger.grant(gpu0, slice30(pod))
			if c.change != nil {
				c.change(n, pod)
			}
			_, err := r.Create(pod, containerOf(pod, "main"))
			refusedFor(t, err, append(c.says, "container main of pod team/a")...)
			if n.Table.Holds(uid(pod)) {
				t.Error("Invariant 6: a refused container holds its slices")
			}
		})
	}
}
