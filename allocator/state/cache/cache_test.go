// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// counts is where pods are counted.
type counts map[types.UID]string

func (c counts) Count(pod *corev1.Pod, node string) (bool, error) {
	changed := c[pod.UID] != node
	if c[pod.UID] = node; node == "" {
		delete(c, pod.UID)
	}
	return changed, nil
}

func (counts) Nominate(*corev1.Pod, string) (bool, error) { return false, nil }

func (counts) Overcommitted(string) bool { return false }

func newCache() (*Cache, counts) {
	filters := counts{}
	return New(filters, nil, logr.Discard()), filters
}

func pod(name, version string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := objects.Single(name, objects.Share(10, 100), edits...)
	p.ResourceVersion = version
	return p
}

// placed has the pod placed on a node's first device, past its gate.
func placed(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		text, err := (&v1alpha1.Placement{Version: v1alpha1.Version, Node: node, Containers: map[string]v1alpha1.PlacedShare{"c": {
			Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: "GPU-" + node + "-0", Core: 10, MemMiB: 100}}}}}).Encode()
		if err != nil {
			panic(err)
		}
		p.Annotations[v1alpha1.AnnotationPlacement] = text
		p.Spec.SchedulingGates = nil
	}
}

// ledger is n0's with slices of the pods.
func ledger(version int, pods ...string) *v1alpha1.SliceLedger {
	l := objects.ReadyLedger("n0")
	l.ResourceVersion = strconv.Itoa(version)
	if len(pods) > 0 {
		l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-n0-0", Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB}}
	}
	for _, p := range pods {
		l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, v1alpha1.Slice{Pod: types.UID(p), Owner: "ns/" + p, Ctr: "c", Core: 10, Mem: 100})
	}
	return l
}

// An older version changes nothing, and a pod under the name of another ends that one.
func TestSetPod(t *testing.T) {
	c, _ := newCache()
	first := pod("p", "5")
	if ch := c.SetPod(first); ch.Pod != first || ch.Old != nil {
		t.Errorf("a new pod changes %+v", ch)
	}
	if ch := c.SetPod(pod("p", "4")); ch.Pod != nil {
		t.Errorf("an older version changes %+v", ch)
	}
	second := pod("p", "6", func(p *corev1.Pod) { p.UID = "again" })
	if ch := c.SetPod(second); len(ch.Gone) != 1 || ch.Gone[0] != first || ch.Pod != second || ch.Old != nil {
		t.Errorf("another pod of that name changes %+v", ch)
	}
	if ch := c.SetWritten(pod("p", "7")); ch.Pod != nil || c.Current(first) != nil {
		t.Errorf("a write to one that is gone changes %+v", ch)
	}
}

// A pod that was deleted before it was bound is known as such until no ledger holds it, if it
// held slices or was being placed; one that was bound is not.
func TestDeletedUnbound(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*Cache)
		exact  bool
		want   bool
	}{
		"with slices":                {func(c *Cache) { c.SetLedger(ledger(1, "p")) }, true, true},
		"while it is placed":         {func(c *Cache) { c.StartPlacing(pod("p", "1")) }, true, true},
		"without":                    {func(*Cache) {}, true, false},
		"of a state that may be old": {func(c *Cache) { c.SetLedger(ledger(1, "p")) }, false, false},
	} {
		c, _ := newCache()
		p := pod("p", "1")
		c.SetPod(p)
		tt.before(c)
		if c.DeletePod(p, tt.exact); c.DeletedUnbound("p") != tt.want {
			t.Errorf("%s: %v, want %v", name, !tt.want, tt.want)
		}
		c.SetLedger(ledger(2))
		if c.FinishPlacing([]*corev1.Pod{p}); c.DeletedUnbound("p") {
			t.Errorf("%s: known for ever", name)
		}
	}
}

// A pod counts where it is, will be or is assumed, and nowhere once it is done.
func TestCountedNode(t *testing.T) {
	c, on := newCache()
	p := pod("p", "1")
	c.SetPod(p)
	c.StartPlacing(p)
	if ch := c.Assume(p, "n0"); on["p"] != "n0" || ch.Freed != OnRefused || len(ch.Counted) != 1 {
		t.Errorf("assumed on n0: counted on %q, changes %+v", on["p"], ch)
	}
	if c.FinishPlacing([]*corev1.Pod{p}); on["p"] != "" {
		t.Errorf("not placed after all: counted on %q", on["p"])
	}
	c.SetLedger(ledger(1, "p"))
	c.Stage(p, "n0", time.Unix(5, 0))
	c.Assume(p, "")
	if since := c.Stage(p, "n0", time.Unix(9, 0)); on["p"] != "n0" || since != time.Unix(5, 0) {
		t.Errorf("waits for n0: counted on %q, since %v", on["p"], since)
	}
	c.FinishPlacing([]*corev1.Pod{p})
	bound := pod("p", "2", placed("n0"), func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	if c.SetPod(bound); on["p"] != "n1" {
		t.Errorf("bound to n1: counted on %q", on["p"])
	}
	if c.SetPod(pod("p", "3", placed("n0"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })); on["p"] != "" {
		t.Errorf("failed: counted on %q", on["p"])
	}
}

// What a decision assumes is over with it, also for a pod that has gone in that time.
func TestAssumption(t *testing.T) {
	c, on := newCache()
	stays, goes := pod("stays", "1"), pod("goes", "1")
	c.SetPod(stays)
	c.SetPod(goes)
	a := c.Assumption()
	for _, p := range []*corev1.Pod{stays, goes} {
		if err := a.Count(p, "n0"); err != nil {
			t.Fatal(err)
		}
	}
	if len(on) != 2 {
		t.Errorf("counted %v", on)
	}
	c.DeletePod(goes, true)
	if a.End(); len(on) != 0 {
		t.Errorf("still counted: %v", on)
	}
	c.SetPod(pod("stays", "2", placed("n0")))
	within := ""
	err := c.Without(stays, func() error { within = on["stays"]; return nil })
	if err != nil || within != "" || on["stays"] != "n0" {
		t.Errorf("counted on %q within, on %q after that: %v", within, on["stays"], err)
	}
}

// A placed pod that its ledger does not have keeps the node from being settled until it has its
// slices back, or is gone.
func TestMissingGrants(t *testing.T) {
	for name, end := range map[string]func(*Cache) Changes{
		"restored": func(c *Cache) Changes { return c.SetLedger(ledger(3, "p")) },
		"gone":     func(c *Cache) Changes { return c.DeletePod(pod("p", "2", placed("n0")), false) },
	} {
		c, _ := newCache()
		c.SetLedger(ledger(1, "p"))
		if c.SetPod(pod("p", "2", placed("n0"))); !c.Settled("n0") {
			t.Fatalf("%s: missing before it was lost", name)
		}
		if ch := c.SetLedger(ledger(2)); c.Settled("n0") || len(c.Missing("n0")) != 1 || fmt.Sprint(ch.Ledgers) != "[n0]" {
			t.Errorf("%s: lost, and settled %v, missing %v, changes %+v", name, c.Settled("n0"), c.Missing("n0"), ch)
		}
		if ch := end(c); !c.Settled("n0") || ch.Freed != OnAll {
			t.Errorf("%s: settled %v, changes %+v", name, c.Settled("n0"), ch)
		}
	}
}

// Pods are learnt of once, from when on somebody wants to know.
func TestArrivals(t *testing.T) {
	c, _ := newCache()
	c.SetPod(pod("before", "1"))
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/other"})
	}
	c.SetPod(pod("gated", "1", gated))
	if got := c.EverArrived(); len(got) != 1 || len(c.Arrivals()) != 0 {
		t.Errorf("arrived %v", got)
	}
	c.SetPod(pod("gated", "2"))
	c.SetPod(pod("gated", "3"))
	if got := c.Arrivals(); len(got) != 1 || len(c.Arrivals()) != 0 {
		t.Errorf("arrived since: %v", got)
	}
	if c.StopArrivals(); len(c.SetPod(pod("late", "1")).Gone)+len(c.Arrivals()) != 0 {
		t.Error("collects although nobody wants to know")
	}
}

// What is known by UID, what leaves, and whose slices nobody knows follow from pods and ledgers,
// whatever came in which order.
func TestPodsByUID(t *testing.T) {
	var leaves, strangers int
	for seed := range 40 {
		r := rand.New(rand.NewSource(int64(seed)))
		c, _ := newCache()
		version, has := 0, map[string]types.UID{}
		for range 300 {
			version++
			name := fmt.Sprint("p", r.Intn(6))
			switch r.Intn(8) {
			case 0, 1, 2:
				if r.Intn(4) == 0 || has[name] == "" {
					has[name] = types.UID(fmt.Sprint(name, "-", version)) // another of that name
				}
				p := pod(name, strconv.Itoa(version), placed("n0"))
				p.UID = has[name]
				switch r.Intn(5) {
				case 0:
					p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
				case 1:
					p.Status.Phase = corev1.PodSucceeded
				case 2:
					p.Annotations, p.Spec.SchedulingGates = nil, nil // none of ours
				}
				if c.SetPod(p); r.Intn(2) == 0 {
					c.SetWritten(p.DeepCopy())
				}
			case 3:
				if known := c.pods[types.NamespacedName{Namespace: "ns", Name: name}]; known != nil {
					c.DeletePod(known, r.Intn(2) == 0)
				}
			case 4:
				c.DeleteLedger(ledger(version))
			default:
				l := ledger(version)
				l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-n0-0", Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB}}
				for name, uid := range has {
					if r.Intn(2) == 0 {
						l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, v1alpha1.Slice{Pod: uid, Owner: "ns/" + name, Ctr: "c", Core: 10, Mem: 100})
					}
				}
				c.SetLedger(l)
			}
			leaves, strangers = leaves+len(c.Leaving()), strangers+len(c.Strangers())
			checkByUID(t, c, fmt.Sprintf("seed %d, step %d", seed, version))
		}
	}
	if leaves == 0 || strangers == 0 {
		t.Errorf("%d pods left, %d were strangers: the test no longer shows anything", leaves, strangers)
	}
}

// checkByUID works it all out from the pods by name and the ledgers.
func checkByUID(t *testing.T, c *Cache, when string) {
	t.Helper()
	leaving, known := map[types.UID]bool{}, map[types.UID]bool{}
	for _, p := range c.Pods() {
		if known[p.UID] = true; c.PodOf(p.UID) != p {
			t.Fatalf("%s: PodOf(%s) is %v", when, p.UID, c.PodOf(p.UID))
		}
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded {
			leaving[p.UID] = true
		}
	}
	if len(c.byUID) != len(known) {
		t.Fatalf("%s: %d pods are known by UID, want %d", when, len(c.byUID), len(known))
	}
	for _, p := range c.Leaving() {
		if !leaving[p.UID] || c.PodOf(p.UID) != p {
			t.Fatalf("%s: %s leaves", when, p.UID)
		}
		delete(leaving, p.UID)
	}
	if len(leaving) > 0 {
		t.Fatalf("%s: %v leave and are not said to", when, leaving)
	}
	strangers := map[types.UID]bool{}
	for _, name := range c.Index.Names() {
		for _, d := range c.Index.Ledger(name).Spec.Devices {
			for _, s := range d.Slices {
				if !known[s.Pod] {
					strangers[s.Pod] = true
				}
			}
		}
	}
	if want := slices.Sorted(maps.Keys(strangers)); !slices.Equal(c.Strangers(), want) {
		t.Fatalf("%s: strangers %v, want %v", when, c.Strangers(), want)
	}
}
