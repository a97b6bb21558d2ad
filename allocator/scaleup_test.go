// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"vernier.dev/vernier/allocator/scaleup"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// buffers are CapacityBuffers in the version that is served as a rule.
var buffers = schema.GroupVersionKind{Group: "autoscaling.x-k8s.io", Version: "v1beta1", Kind: "CapacityBuffer"}

// scaling is a stage with an autoscaler's API, where there is one.
type scaling struct {
	*stage
	api    client.Client
	keeper *scaleup.Keeper
	kind   schema.GroupVersionKind
}

func newScaling(t *testing.T, nodes, maxGPUs int, version string) *scaling {
	s := &scaling{stage: newStage(t, nodes), kind: buffers}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: buffers.Group, Version: "v1beta1"}, {Group: buffers.Group, Version: "v1alpha1"}})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PodTemplate"), meta.RESTScopeNamespace)
	if version != "" {
		s.kind.Version = version
		mapper.Add(s.kind, meta.RESTScopeNamespace)
	}
	s.api = fake.NewClientBuilder().WithScheme(objects.Scheme(t)).WithRESTMapper(mapper).Build()
	s.lead(maxGPUs)
	return s
}

// lead has a new leader.
func (s *scaling) lead(maxGPUs int) {
	a := s.allocator
	s.keeper = &scaleup.Keeper{Client: s.api, Namespace: "vernier-system", MaxGPUs: maxGPUs,
		Cache: a.cache, Queue: a.queue, Groups: a.groups, Reservations: a.reservations, Filters: a.Filters, Node: func(name string) *corev1.Node {
			node := &corev1.Node{}
			s.must(s.stage.api.Get(s.t.Context(), types.NamespacedName{Name: name}, node))
			return node
		}, Clock: s.clock, Log: logr.Discard()}
}

// asks is what the buffers ask for, as REPLICASxDEVICES and what is said of nodes, once the pods have waited.
func (s *scaling) asks() string {
	s.t.Helper()
	s.must(s.keeper.Look(s.t.Context()))
	s.pass(31 * time.Second)
	return s.asksNow()
}

func (s *scaling) asksNow() string {
	s.t.Helper()
	s.clock.Step(time.Second)
	s.must(s.keeper.Look(s.t.Context()))
	list, templates := &unstructured.UnstructuredList{}, &corev1.PodTemplateList{}
	list.SetGroupVersionKind(s.kind)
	s.must(client.IgnoreNotFound(s.api.List(s.t.Context(), list)))
	s.must(s.api.List(s.t.Context(), templates))
	if len(list.Items) != len(templates.Items) {
		s.t.Fatalf("%d buffers, %d templates", len(list.Items), len(templates.Items))
	}
	var all []string
	for _, b := range list.Items {
		n, _, _ := unstructured.NestedInt64(b.Object, "spec", "replicas")
		name, _, _ := unstructured.NestedString(b.Object, "spec", "podTemplateRef", "name")
		at := slices.IndexFunc(templates.Items, func(p corev1.PodTemplate) bool { return p.Name == name })
		spec := templates.Items[at].Template.Spec
		requests := spec.Containers[0].Resources.Requests
		text := fmt.Sprintf("%dx%d", n, requests.Name(v1alpha1.ResourceCore, "").Value()/100)
		if mem := requests.Name(v1alpha1.ResourceMemPercent, "").Value(); mem != requests.Name(v1alpha1.ResourceCore, "").Value() {
			s.t.Errorf("%d %% of memory", mem)
		}
		if cpu := requests.Cpu(); !cpu.IsZero() {
			text += " cpu=" + cpu.String()
		}
		for key, value := range spec.NodeSelector {
			text += " " + key + "=" + value
		}
		if a := spec.Affinity; a != nil {
			for _, e := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions {
				text += fmt.Sprintf(" %s %s %v", e.Key, e.Operator, e.Values)
			}
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// fill has others take so much of each device.
func (s *scaling) fill(core v1alpha1.Percent) {
	for _, n := range s.nodes {
		for device := range 2 {
			s.use(n.name, device, core)
		}
	}
}

// 40 pods of a quarter ask for ten devices once they have waited, and for fewer as they are placed.
func TestScaleUp(t *testing.T) {
	s := newScaling(t, 1, 100, "v1beta1")
	s.fill(100)
	for i := range 40 {
		s.add(fmt.Sprint("p", i), 25, 1, objects.CPU("500m"))
	}
	s.work()
	if got := s.asksNow(); got != "" {
		t.Fatalf("at once: %s", got)
	}
	if got := s.asks(); got != "10x1 cpu=2" {
		t.Fatalf("got %q", got)
	}
	s.setLedgerSpecEmpty("n0")
	s.work()
	if got := s.asksNow(); got != "8x1 cpu=2" {
		t.Fatalf("with two devices more: %q", got)
	}
	for i := range 40 {
		s.delete(fmt.Sprint("p", i))
	}
	s.work()
	if got := s.asksNow(); got != "0x1 cpu=2" {
		t.Fatalf("without pods: %q", got)
	}
	s.pass(time.Minute)
	if got := s.asksNow(); got != "" {
		t.Fatalf("later: %q", got)
	}
}

// setLedgerSpecEmpty has the others of a node end.
func (s *scaling) setLedgerSpecEmpty(node string) {
	s.editLedger(node, func(l *v1alpha1.SliceLedger) {
		for i := range l.Spec.Devices {
			l.Spec.Devices[i].Slices = nil
		}
	})
}

func TestScaleUp_What(t *testing.T) {
	for _, tt := range []struct {
		name  string
		taken v1alpha1.Percent
		add   func(s *scaling)
		want  string
	}{
		{"a fragmented cluster", 30, func(s *scaling) { s.add("p", 100, 1) }, "1x1 kubernetes.io/hostname NotIn [n0]"},
		{"two devices each", 100, func(s *scaling) {
			for i := range 3 {
				s.create(objects.Single(fmt.Sprint("p", i), v1alpha1.Share{GPUs: 2, Core: 50, MemMiB: 1}))
			}
		}, "2x2"},
		{"a gang", 100, func(s *scaling) { s.addGang(3, 100, 1) }, "3x1"},
		{"a gang beyond the bound", 100, func(s *scaling) { s.addGang(5, 100, 1) }, ""},
		{"what is behind it", 100, func(s *scaling) {
			s.addGang(5, 100, 1)
			s.add("p", 50, 1)
		}, "1x1"},
		{"what is within the bound", 100, func(s *scaling) {
			for i := range 9 {
				s.add(fmt.Sprint("p", i), 60, 1)
			}
		}, "4x1"},
		{"a pool", 100, func(s *scaling) {
			s.add("p", 50, 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} })
			s.add("q", 50, 1)
		}, "1x1; 1x1 pool=a"},
		{"no GPU yet", 0, func(s *scaling) {
			s.add("p", 25, 10_000)
			s.add("q", 25, 10_000)
		}, "1x1"},
		{"a model", 100, func(s *scaling) {
			n := objects.Node("n0")
			n.Labels[v1alpha1.LabelGPUModel] = "T4"
			s.put(n)
			s.add("p", 50, 1, objects.Annotated(v1alpha1.AnnotationGPUModel, "T4"))
		}, "1x1 vernier.dev/gpu-model In [T4]"},
		{"a model that nobody has seen", 100, func(s *scaling) { s.add("p", 50, 1, objects.Annotated(v1alpha1.AnnotationGPUModel, "H100")) }, ""},
		{"a GPU by its UUID", 100, func(s *scaling) { s.add("p", 50, 1, objects.Annotated(v1alpha1.AnnotationGPUUUID, "GPU-n0-0")) }, ""},
		{"more than a device has", 100, func(s *scaling) { s.add("p", 50, 5000) }, ""},
		{"an incomplete gang", 100, func(s *scaling) { s.add("m", 50, 1, objects.InGang("g", 2)) }, ""},
		{"another's gate", 100, func(s *scaling) { s.add("p", 50, 1, otherGated) }, ""},
		{"a pod for which another is evicted", 1, func(s *scaling) {
			s.add("low0", 99, 1, finalized)
			s.add("low1", 99, 1, finalized)
			s.work()
			s.bindNow("low0")
			s.bindNow("low1")
			s.add("urgent", 50, 1, objects.Priority(1000))
		}, ""},
		{"idle compute", 100, func(s *scaling) { s.create(objects.Single("p", objects.IdleShare(30, 1))) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScaling(t, min(1, int(tt.taken)), 4, "v1beta1")
			s.fill(tt.taken)
			tt.add(s)
			s.work()
			if got := s.asks(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A node that begins to take slices is counted on, until the waiting pods would be there. What fits there asks for
// nothing more, before it is placed.
func TestScaleUp_WhenNodeIsNew_IsCountedOn(t *testing.T) {
	s := newScaling(t, 1, 4, "v1beta1")
	s.fill(30)
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Conditions = nil })
	s.add("p", 100, 1)
	s.add("q", 30, 1)
	s.work()
	if got := s.asks(); got != "2x1" {
		t.Fatalf("while it starts: %q", got)
	}
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Conditions = objects.ReadyLedger("n0").Status.Conditions })
	s.readAll()
	if got := s.asksNow(); got != "1x1" {
		t.Fatalf("as it is ready: %q", got)
	}
	s.work()
	s.pass(30 * time.Second)
	if got := s.asksNow(); got != "1x1 kubernetes.io/hostname NotIn [n0]" {
		t.Fatalf("later: %q", got)
	}
}

// The API is written in the version that is served.
func TestScaleUp_WhenVersionIsOlder_AsksInThat(t *testing.T) {
	s := newScaling(t, 1, 4, "v1alpha1")
	s.fill(100)
	s.add("p", 50, 1)
	s.work()
	if got := s.asks(); got != "1x1" {
		t.Errorf("got %q", got)
	}
}

// A new leader deletes what nobody needs, also where it is to ask for nothing. Where there is no such API
// nothing is wrong.
func TestScaleUp_WhenLeaderIsNew_DeletesTheRest(t *testing.T) {
	s := newScaling(t, 1, 4, "v1beta1")
	s.fill(100)
	s.add("p", 50, 1)
	s.work()
	if got := s.asks(); got != "1x1" {
		t.Fatalf("got %q", got)
	}
	s.lead(0)
	if got := s.asks(); got != "0x1" {
		t.Errorf("got %q", got)
	}
	s.pass(time.Minute)
	if got := s.asksNow(); got != "" {
		t.Errorf("later: %q", got)
	}
	absent := newScaling(t, 1, 4, "")
	absent.fill(100)
	absent.add("p", 50, 1)
	absent.work()
	if got := absent.asks(); got != "" {
		t.Errorf("got %q", got)
	}
}

// The startup taint goes once the ledger takes slices, the kubelet is ready and shows the capacity, and the
// buffers ask for less. Other taints stay.
func TestScaleUp_StartupTaint(t *testing.T) {
	s := newScaling(t, 1, 4, "v1beta1")
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Conditions = nil })
	startup, other := corev1.Taint{Key: v1alpha1.TaintAgentNotReady, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}
	node := objects.Node("n0")
	node.Spec.Taints = []corev1.Taint{startup, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, other}
	capacity := node.Status.Allocatable
	node.Status.Allocatable = nil
	s.must(s.api.Create(t.Context(), node))
	s.keeper.Node = func(string) *corev1.Node {
		s.must(s.api.Get(t.Context(), client.ObjectKeyFromObject(node), node))
		return node
	}
	show := func(d time.Duration) string {
		s.clock.Step(d)
		s.must(s.keeper.Look(t.Context()))
		keys := ""
		for _, taint := range s.keeper.Node("").Spec.Taints {
			keys += " " + taint.Key
		}
		return keys
	}
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"no agent", func() {}, " vernier.dev/agent-not-ready node.kubernetes.io/not-ready gpu"},
		{"a kubelet that is not ready", func() {
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Conditions = objects.ReadyLedger("n0").Status.Conditions })
			s.readAll()
		}, " vernier.dev/agent-not-ready node.kubernetes.io/not-ready gpu"},
		{"no capacity", func() {
			node.Spec.Taints = []corev1.Taint{startup, other}
			s.must(s.api.Update(t.Context(), node))
		}, " vernier.dev/agent-not-ready gpu"},
		{"all", func() {
			node.Status.Allocatable = capacity
			s.must(s.api.Status().Update(t.Context(), node))
		}, " gpu"},
	} {
		step.do()
		if got := show(0); step.want == " gpu" && got == step.want {
			t.Errorf("%s: it is gone before buffers could shrink", step.what)
		}
		if got := show(time.Second); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}
