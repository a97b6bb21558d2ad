// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/mig"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// A container whose pod was written for gpushare finds the variables that gpushare
// would have set, over those of its image.
func TestCreateInADialect(t *testing.T) {
	n, r := connected(t)
	pod := podOf("a", share30)
	pod.Annotations[v1alpha1.AnnotationDialect] = v1alpha1.DialectGPUShareGiB
	n.ledger.grant(gpu1, slice30(pod))
	got := must.Get(r.Create(pod, containerOf(pod, "main", "ALIYUN_COM_GPU_MEM_IDX=7")))(t)
	have := env(got)
	if have["ALIYUN_COM_GPU_MEM_IDX"] != "1" || have["ALIYUN_COM_GPU_MEM_DEV"] != "80" || have["ALIYUN_COM_GPU_MEM_CONTAINER"] != "20" {
		t.Errorf("environment %v", have)
	}
}

// A container with a slice gets its device, its mark and its limits, and NVIDIA's
// own runtime is told to add nothing.
func TestCreateWithSlice(t *testing.T) {
	n, r, pod := granted(t)
	c := containerOf(pod, "main", v1alpha1.EnvVisibleDevices+"=all")

	got := must.Get(r.Create(pod, c))(t)
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
	limits := must.Get(layout.ReadFile(filepath.Join(own, "limits")))(t)
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
	n, r := connected(t)
	pod := podOf("a", `{"version":"v1alpha1","containers":{"main":{"gpus":2,"core":100,"memPercent":100}}}`)
	whole := v1alpha1.Slice{Pod: uid(pod), Owner: owner(pod), Ctr: "main", Core: 100, Mem: size, Mode: v1alpha1.ModeExclusive}
	n.ledger.grant(gpu0, whole)
	n.ledger.grant(gpu1, whole)
	c := containerOf(pod, "main")
	got := must.Get(r.Create(pod, c))(t)
	if want := []string{"vernier.dev/gpu=" + gpu0, "vernier.dev/gpu=" + gpu1}; !reflect.DeepEqual(cdiNames(got), want) {
		t.Errorf("CDI devices %v, want %v", cdiNames(got), want)
	}
	if len(got.GetMounts()) != 0 {
		t.Errorf("mounts %v", got.GetMounts())
	}
	must.Do(t, r.StartContainer(pod, c))
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
	n, r := connected(t)
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
	n, r := connected(t)
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
		"device unhealthy": {
			shares: share30,
			change: func(n *testNode, _ *api.PodSandbox) { n.gpus.unhealthy[gpu0] = "Xid 79" },
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
			n, r := connected(t)
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

// A pod that the scheduler binds before the watch has delivered its slices is
// confirmed by the API server.
func TestCreateBeforeTheWatch(t *testing.T) {
	n, r := connected(t)
	pod := podOf("a", share30)
	n.ledger.server = &v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: gpu1, Core: 100, Mem: size, Slices: []v1alpha1.Slice{slice30(pod)}},
	}}}
	c := containerOf(pod, "main")
	got := must.Get(r.Create(pod, c))(t)
	if want := []string{"vernier.dev/gpu=" + gpu1}; !reflect.DeepEqual(cdiNames(got), want) {
		t.Errorf("CDI devices %v, want %v", cdiNames(got), want)
	}
	if err := r.StartContainer(pod, c); err != nil {
		t.Errorf("start: %v", err)
	}
}

// Invariant 1: what is held for a gang is not granted: it can be taken back from a
// container that runs. A watch that is behind the end of the hold keeps nobody out.
func TestCreateOnHeldSlices(t *testing.T) {
	n, r, pod := granted(t)
	n.ledger.watched.Spec.Holds = []v1alpha1.Hold{{Owner: "podgroups./ns/gang", Pods: []types.UID{uid(pod)}}}
	n.ledger.server = n.ledger.watched.DeepCopy()
	if _, err := r.Create(pod, containerOf(pod, "main")); err == nil || !strings.Contains(err.Error(), "held for its gang") {
		t.Errorf("held: %v", err)
	}
	if n.Table.Holds(uid(pod)) {
		t.Error("it is entered as one that uses them")
	}
	n.ledger.err = errors.New("connection refused")
	if _, err := r.Create(pod, containerOf(pod, "main")); err == nil || !strings.Contains(err.Error(), "cannot be confirmed") {
		t.Errorf("held, as far as is known: %v", err)
	}
	n.ledger.err = nil
	watched := n.ledger.watched.DeepCopy()
	n.loseSpec()
	if _, err := r.Create(pod, containerOf(pod, "main")); err == nil || !strings.Contains(err.Error(), "held for its gang") {
		t.Errorf("held, and the watch has nothing of it: %v", err)
	}
	n.ledger.watched, n.ledger.server.Spec.Holds = *watched, nil
	if _, err := r.Create(pod, containerOf(pod, "main")); err != nil {
		t.Errorf("granted, and the watch is behind: %v", err)
	}
}

// The runtime waits 2 s for all of an answer, so the API server is asked once, however
// little the watch knows.
func TestCreateAsksOnce(t *testing.T) {
	n, r, pod := granted(t)
	n.ledger.watched.Spec.Holds = []v1alpha1.Hold{{Owner: "podgroups./ns/gang", Pods: []types.UID{uid(pod)}}}
	n.ledger.server = &v1alpha1.SliceLedger{} // the hold has ended, and the slices with it
	if _, err := r.Create(pod, containerOf(pod, "main")); err == nil || !strings.Contains(err.Error(), "has no slice for it") {
		t.Errorf("%v", err)
	}
	if n.ledger.reads != 1 {
		t.Errorf("%d reads", n.ledger.reads)
	}
}

// Invariant 4: with a warm cache a container is created, started and ended while
// the API server is away.
func TestCreateWithoutAPIServer(t *testing.T) {
	n, r := connected(t)
	n.ledger.err = errors.New("connection refused")
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := containerOf(pod, "main")
	must.Get(r.Create(pod, c))(t)
	must.Do(t, r.StartContainer(pod, c))
	r.StopContainer(t, pod, c)
}

// Invariant 2: a plugin that is lost in the middle of a creation fails it, and
// the one that comes back takes the next try.
func TestCreateCrash(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	crashing := connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	stuck := make(chan struct{})
	n.gpus.onCheck = func() {
		go crashing.disconnect()
		<-stuck
		n.gpus.unhealthy[gpu0] = "the agent is gone"
	}
	t.Cleanup(func() { close(stuck) })
	_, err := r.Create(pod, containerOf(pod, "main"))
	refusedFor(t, err)

	again := newNode(t)
	again.ledger.grant(gpu0, slice30(pod))
	connect(t, r, again.Plugin)
	if _, err := r.Create(pod, containerOf(pod, "main")); err != nil {
		t.Errorf("after the crash: %v", err)
	}
}

// Invariant 2 and 5: an agent that hangs fails the creation that waits for it and
// is then dropped: other pods start without waiting, pods with slices do not.
func TestCreateHung(t *testing.T) {
	n, r := connected(t)
	pod, plain := podOf("a", share30), podOf("plain", "")
	n.ledger.grant(gpu0, slice30(pod))
	// What hung writes nothing when it goes on, after the test.
	n.gpus.unhealthy[gpu0] = "it hung"
	// Every look into the ledger hangs: creations, and the next synchronization.
	n.ledger.mu.Lock()
	t.Cleanup(n.ledger.mu.Unlock)
	nritest.Impatient(t)

	_, err := r.Create(pod, containerOf(pod, "main"))
	refusedFor(t, err, "deadline")
	if got, err := r.Create(plain, containerOf(plain, "main")); err != nil || len(env(got)) != 0 {
		t.Errorf("Invariant 5: %v, %v", got, err)
	}
	_, err = r.Create(pod, containerOf(pod, "main"))
	refusedFor(t, err, "required plugin", v1alpha1.NRIPluginName)
}

// The annotation for idle time reaches the limits, and a value that means nothing
// keeps the container from starting.
func TestCreateBurst(t *testing.T) {
	for value, says := range map[string]string{"idle": "", "none": "", "always": "none or idle"} {
		n, r := connected(t)
		pod := podOf("a", share30)
		pod.Annotations[v1alpha1.AnnotationBurst] = value
		n.ledger.grant(gpu0, slice30(pod))
		adjust, err := r.Create(pod, containerOf(pod, "main"))
		if says != "" {
			refusedFor(t, err, v1alpha1.AnnotationBurst, says)
			continue
		}
		must.Do(t, err)
		for _, m := range adjust.GetMounts() {
			if m.GetDestination() != layout.Folder {
				continue
			}
			limits, err := layout.ReadFile(filepath.Join(m.GetSource(), filepath.Base(layout.LimitsPath)))
			if err != nil || limits.Devices[0].MayBurst != (value == "idle") {
				t.Errorf("%s: %+v, %v", value, limits, err)
			}
		}
	}
}

// Invariants 1 and 6: a container does not start on slices that were moved since the
// watch has shown them, nor on a device that they can be moved off this moment.
func TestSlicesThatWereMoved(t *testing.T) {
	unhealthy := func(n *testNode) { n.ledger.unhealthy = map[string]bool{gpu0: true} }
	tests := []struct {
		name, placed string
		behind       func(*testNode)
		server, want string
	}{
		{"nothing moved", gpu0, func(*testNode) {}, "", gpu0},
		{"behind, moved", gpu0, func(n *testNode) { n.ledger.behind = true }, gpu1, gpu1},
		{"behind, not moved", gpu0, func(n *testNode) { n.ledger.behind = true }, gpu0, gpu0},
		{"unhealthy, moved", gpu0, unhealthy, gpu1, gpu1},
		{"unhealthy, not moved", gpu0, unhealthy, gpu0, ""},
		{"taken back before it was released", gpu1, func(*testNode) {}, gpu1, gpu1},
		{"another's annotation", gpu1, func(*testNode) {}, gpu0, gpu0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t), podOf("a", share30)
			placed := v1alpha1.Placement{Version: v1alpha1.Version, Node: "n", Containers: map[string]v1alpha1.PlacedShare{
				"main": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: tt.placed, Core: 30, MemMiB: 20480}}},
				"next": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: gpu0, Core: 30, MemMiB: 20480}}},
			}}
			pod.Annotations[v1alpha1.AnnotationPlacement] = must.Get(placed.Encode())(t)
			if tt.server != "" {
				n.ledger.grant(tt.server, slice30(pod))
				n.ledger.server, n.ledger.watched = n.ledger.watched.DeepCopy(), v1alpha1.SliceLedger{}
			}
			n.ledger.grant(gpu0, slice30(pod))
			tt.behind(n)
			c := containerOf(pod, "main")
			_, _, err := n.CreateContainer(t.Context(), pod, c)
			if tt.want == "" {
				refusedFor(t, err, "its ledger is not updated yet", "retrying")
				return
			}
			must.Do(t, err)
			if e, _ := n.Table.Get(c.Id); e.Grants[0].UUID != tt.want {
				t.Errorf("it was given %s, want %s", e.Grants[0].UUID, tt.want)
			}
		})
	}
}

// On a device in MIG mode a container gets its instance and nothing else, and is
// started only while the driver has that very instance.
func TestMIG(t *testing.T) {
	n, r := connected(t)
	n.gpus.mig = map[string]v1alpha1.MIGState{gpu0: v1alpha1.MIGEnabled}
	m := must.Get(mig.New(filepath.Join(t.TempDir(), "mig.json"), mig.Node{
		Devices: n.gpus, Index: n.ledger.Index, Containers: func() ([]mode.Container, bool) { return n.Table.Containers(), n.Table.Synced() },
	}))(t)
	n.Modes[v1alpha1.ModeMIG] = m
	place := v1alpha1.MIGPlace{Profile: 14, Start: 2, Size: 2}
	is := func(uuid string) {
		n.gpus.mu.Lock()
		defer n.gpus.mu.Unlock()
		n.gpus.instances = []v1alpha1.MIGInstance{{MIGPlace: place, UUID: uuid}}
	}
	pod := podOf("a", share30)
	slice := slice30(pod)
	slice.Mode, slice.MIG = v1alpha1.ModeMIG, &place
	n.ledger.grant(gpu0, slice)
	c := containerOf(pod, "main")

	_, err := r.Create(pod, c)
	refusedFor(t, err, "MIG instance", "not ready", "tried again")

	is("MIG-1")
	got := must.Get(r.Create(pod, c))(t)
	if want := []string{"vernier.dev/gpu=MIG-1"}; !reflect.DeepEqual(cdiNames(got), want) || len(got.GetMounts()) != 0 || env(got)[v1alpha1.EnvVisibleDevices] != "void" {
		t.Errorf("given %v, mounts %v, environment %v, want %v alone", cdiNames(got), got.GetMounts(), env(got), want)
	}
	is("MIG-2")
	refusedFor(t, r.StartContainer(pod, c), "was destroyed after")

	is("MIG-1")
	must.Do(t, r.StartContainer(pod, c))
	want := v1alpha1.SliceStatus{
		Pod: uid(pod), Ctr: "main", UUID: gpu0, Container: c.Id, Mode: v1alpha1.ModeMIG, MIG: &place,
		Memory: v1alpha1.GuaranteeHardware, Compute: v1alpha1.GuaranteeHardware,
	}
	if all := n.Table.Slices(); len(all) != 1 || !reflect.DeepEqual(all[0], want) {
		t.Errorf("status %+v, want %+v", all, want)
	}

	// Invariant 1: nobody else gets onto the instance, whatever the ledger says.
	second := podOf("b", share30)
	stray := slice30(second)
	stray.Mode, stray.MIG = v1alpha1.ModeMIG, &place
	n.ledger.grant(gpu0, stray)
	_, err = r.Create(second, containerOf(second, "main"))
	refusedFor(t, err, "container main of pod team/a has the MIG instance")
}
