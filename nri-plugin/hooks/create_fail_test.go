// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/nritest"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// A pod that the scheduler binds before the watch has delivered its slices is
// confirmed by the API server.
func TestCreateBeforeTheWatch(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.server = &v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: gpu1, Core: 100, Mem: size, Slices: []v1alpha1.Slice{slice30(pod)}},
	}}}
	c := containerOf(pod, "main")
	got, err := r.Create(pod, c)
	if err != nil {
		t.Fatal(err)
	}
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
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
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
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
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
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	n.ledger.err = errors.New("connection refused")
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := containerOf(pod, "main")
	if _, err := r.Create(pod, c); err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(pod, c); err != nil {
		t.Fatal(err)
	}
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
		n.gpus.ill[gpu0] = "the agent is gone"
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
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod, plain := podOf("a", share30), podOf("plain", "")
	n.ledger.grant(gpu0, slice30(pod))
	// What hung writes nothing when it goes on, after the test.
	n.gpus.ill[gpu0] = "it hung"
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
		n, r := newNode(t), nritest.Start(t)
		connect(t, r, n.Plugin)
		pod := podOf("a", share30)
		pod.Annotations[v1alpha1.AnnotationBurst] = value
		n.ledger.grant(gpu0, slice30(pod))
		adjust, err := r.Create(pod, containerOf(pod, "main"))
		if says != "" {
			refusedFor(t, err, v1alpha1.AnnotationBurst, says)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
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
	ill := func(n *testNode) { n.ledger.ill = map[string]bool{gpu0: true} }
	tests := []struct {
		name, placed string
		behind       func(*testNode)
		server, want string
	}{
		{"nothing moved", gpu0, func(*testNode) {}, "", gpu0},
		{"behind, moved", gpu0, func(n *testNode) { n.ledger.behind = true }, gpu1, gpu1},
		{"behind, not moved", gpu0, func(n *testNode) { n.ledger.behind = true }, gpu0, gpu0},
		{"ill, moved", gpu0, ill, gpu1, gpu1},
		{"ill, not moved", gpu0, ill, gpu0, ""},
		{"taken back before it was let go", gpu1, func(*testNode) {}, gpu1, gpu1},
		{"another's annotation", gpu1, func(*testNode) {}, gpu0, gpu0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t), podOf("a", share30)
			placed := v1alpha1.Placement{Version: v1alpha1.Version, Node: "n", Containers: map[string]v1alpha1.PlacedShare{
				"main": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: tt.placed, Core: 30, MemMiB: 20480}}},
				"next": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: gpu0, Core: 30, MemMiB: 20480}}},
			}}
			document, err := placed.Encode()
			if err != nil {
				t.Fatal(err)
			}
			pod.Annotations[v1alpha1.AnnotationPlacement] = document
			if tt.server != "" {
				n.ledger.grant(tt.server, slice30(pod))
				n.ledger.server, n.ledger.watched = n.ledger.watched.DeepCopy(), v1alpha1.SliceLedger{}
			}
			n.ledger.grant(gpu0, slice30(pod))
			tt.behind(n)
			c := containerOf(pod, "main")
			_, _, err = n.CreateContainer(t.Context(), pod, c)
			if tt.want == "" {
				refusedFor(t, err, "the ledger does not say so yet", "tried again")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, _ := n.Table.Get(c.Id); e.Grants[0].UUID != tt.want {
				t.Errorf("it was given %s, want %s", e.Grants[0].UUID, tt.want)
			}
		})
	}
}
