// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// said is an event of the allocator on the pod.
func said(pod *corev1.Pod, of cause.Cause, text string) corev1.Event {
	return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Annotations: map[string]string{cause.Annotation: string(of)}},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Reason: "VernierWaiting", Message: text, LastTimestamp: metav1.Unix(1, 0)}
}

// A pod waits for one thing. What is true now goes before what an event said, and the event before
// what only the allocator knows.
func TestPictureWaits(t *testing.T) {
	empty, used, cordoned := ledger(0), ledger(50), ledger(0)
	cordoned.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-a", By: "ops", Since: metav1.Unix(0, 0)}}
	const short = "container c needs 90 % compute and 7,680 MiB on one GPU; nearest: gpu-1 GPU 0 has 7 % and 15,360 MiB free"
	const now = "container c needs 90 % compute and 7,680 MiB on one GPU; nearest: gpu-1 GPU 0 has 50 % and 15,260 MiB free"
	for name, tt := range map[string]struct {
		ledger *v1alpha1.SliceLedger
		edit   func(*corev1.Pod)
		cause  cause.Cause // of the event, and its text
		text   string
		owner  string
		unread bool // the classes
		want   Verdict
	}{
		"another figure":       {ledger: used, cause: cause.Insufficient, text: short, want: Verdict{Cause: cause.Insufficient, Text: now}},
		"its cause is deleted": {ledger: empty, cause: cause.Insufficient, text: short, want: Verdict{Cause: cause.NotLookedAt, Text: "there is room since: the allocator looks again"}},
		"nothing is said":      {ledger: empty, want: Verdict{Cause: cause.NotLookedAt, Text: "there is room: the allocator has not said anything of it yet"}},
		"cordoned": {ledger: cordoned, cause: cause.Insufficient, text: short,
			want: Verdict{Cause: cause.NotGranted, Text: "no node has a GPU that takes slices; 1 GPU(s) are cordoned, such as gpu-1 GPU 0, cordoned by ops"}},
		"another selector": {ledger: empty, edit: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"gpu": "a100"} }, cause: cause.Insufficient, text: short,
			want: Verdict{Cause: cause.SchedulerRefuses, Text: "1 node(s) have the devices, but the scheduler would refuse them: 1 node(s) didn't match node selector gpu=a100"}},
		"another GPU": {ledger: empty, edit: objects.Annotated(v1alpha1.AnnotationGPUModel, "A100"),
			want: Verdict{Cause: cause.NotAllowed, Text: "none of the 1 GPUs is allowed by the pod's vernier.dev/gpu-model: there are 1 x T4"}},
		"reserved for another":                {ledger: empty, owner: "big", cause: cause.Reserved, text: "reserved", want: Verdict{Cause: cause.Reserved, Text: "there is room, which is reserved for big"}},
		"reserved, and nobody knows for whom": {ledger: empty, cause: cause.Reserved, text: "reserved for others", want: Verdict{cause.Reserved, "reserved for others", true}},
		"what the scheduler has against it":   {ledger: empty, cause: cause.SchedulerRefuses, text: "Insufficient cpu", want: Verdict{cause.SchedulerRefuses, "Insufficient cpu", true}},
		"a pod before it":                     {ledger: empty, cause: cause.WaitsForPod, text: "waits for pod p", want: Verdict{cause.WaitsForPod, "waits for pod p", true}},
		"its gang, although there is no room": {ledger: used, cause: cause.GangIncomplete, text: "1 of 2", want: Verdict{cause.GangIncomplete, "1 of 2", true}},
		"room for its gang, by new figures":   {ledger: used, edit: objects.InGang("g", 2), cause: cause.GangNoRoom, text: short, want: Verdict{Cause: cause.GangNoRoom, Text: now}},
		"no node for its gang": {ledger: empty, edit: func(p *corev1.Pod) {
			objects.InGang("g", 2)(p)
			objects.Annotated(v1alpha1.AnnotationGPUModel, "A100")(p)
		}, cause: cause.NotAllowed, text: short, want: Verdict{Cause: cause.NotAllowed, Text: "none of the 1 GPUs is allowed by the pod's vernier.dev/gpu-model: there are 1 x T4"}},
		"a node that is full, and not for it": {ledger: used, edit: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"gpu": "a100"} }, cause: cause.Insufficient, text: short,
			want: Verdict{Cause: cause.SchedulerRefuses, Text: "it may go to none of the 1 node(s) with GPUs: 1 node(s) didn't match node selector gpu=a100"}},
		"the event has expired": {ledger: empty, edit: func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) },
			want: Verdict{Text: "there is room by the ledgers, and the allocator's event has expired: its log says what else it waits for"}},
		"a class that is not there": {ledger: empty, edit: ofClass, want: Verdict{Cause: cause.NoClass}},
		"a class that may not be read": {ledger: empty, edit: ofClass, unread: true, cause: cause.Insufficient, text: short,
			want: Verdict{cause.Insufficient, short, true}},
		"who may not leave":                {ledger: used, cause: cause.EvictionForbidden, text: short + "; a budget", want: Verdict{cause.EvictionForbidden, short + "; a budget", true}},
		"an allocator that names no cause": {ledger: empty, text: "words", want: Verdict{Text: "words", Event: true}},
		"no ledger may be read":            {cause: cause.Insufficient, text: short, want: Verdict{cause.Insufficient, short, true}},
		"other gates": {ledger: empty, edit: func(p *corev1.Pod) {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/quota"})
		}, want: Verdict{Cause: cause.OtherGates, Text: "it waits for other gates first: example.com/quota"}},
		"its request": {ledger: empty, edit: objects.Annotated(v1alpha1.AnnotationShares, "{"), want: Verdict{Cause: cause.Invalid}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := objects.Single("p", v1alpha1.Share{GPUs: 1, Core: 90, MemPercent: 50})
			if tt.edit != nil {
				tt.edit(pod)
			}
			p := Picture{Classes: classes.Of(), Node: func(string) *corev1.Node { return objects.Node("gpu-1") }, Now: time.Now()}
			if pod.CreationTimestamp.IsZero() {
				pod.CreationTimestamp = metav1.NewTime(p.Now)
			}
			if tt.unread {
				p.Classes = nil
			}
			if tt.ledger != nil {
				p.Ledgers = []*v1alpha1.SliceLedger{tt.ledger}
			}
			if tt.text != "" {
				p.Said = view.SaidIn([]corev1.Event{said(pod, tt.cause, tt.text)})
			}
			if tt.owner != "" {
				p.Owners = map[view.GPUOf][]string{{Node: "gpu-1"}: {tt.owner}}
			}
			got := p.Waits(pod)
			if tt.want.Text == "" {
				got.Text = ""
			}
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// ofClass has the pod ask for a unit of a class.
func ofClass(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits[v1alpha1.ClassResource("gold")] = resource.MustParse("1")
}

// What a cordon holds back is the cause where it would do; another model's GPU is not short of room.
func TestPictureNamesTheCordon(t *testing.T) {
	a100, t4 := ledger(0), ledger(50)
	a100.Name, a100.Status.Devices[0].Model = "gpu-2", "A100"
	a100.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-a", By: "ops", Since: metav1.Unix(0, 0)}}
	pod := objects.Single("p", v1alpha1.Share{GPUs: 1, Core: 90, MemPercent: 50}, objects.Annotated(v1alpha1.AnnotationGPUModel, "A100"))
	p := Picture{Ledgers: []*v1alpha1.SliceLedger{a100, t4}, Classes: classes.Of(), Node: func(string) *corev1.Node { return nil }}
	if got := p.Waits(pod); got.Cause != cause.NotGranted || !strings.Contains(got.Text, "1 GPU(s) are cordoned, such as gpu-2 GPU 0") {
		t.Errorf("%+v", got)
	}
}

// The ledgers are looked at for so many pods that ask for different things, and no more.
func TestHostileDemandsOfAPicture(t *testing.T) {
	p := Picture{Ledgers: []*v1alpha1.SliceLedger{ledger(50)}, Classes: classes.Of(), Node: func(string) *corev1.Node { return nil }, Most: 8}
	looked := 0
	for i := range 100 {
		pod := objects.Single(fmt.Sprint("p", i), objects.Share(v1alpha1.Percent(60+i%20), 10))
		if v := p.Waits(pod); !v.Event {
			looked++
		}
	}
	if len(p.known) != 8 || looked != 8*5 {
		t.Errorf("looked %d times for %d demands", looked, len(p.known))
	}
}

// ledger is a node with one GPU, of which that much compute is granted.
func ledger(granted v1alpha1.Percent) *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: "GPU-a", Model: "T4", Mem: 15360, Healthy: true}}
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-a", Core: 100, Mem: 15360}}
	if granted > 0 {
		l.Spec.Devices[0].Slices = []v1alpha1.Slice{{Pod: "other", Owner: "ns/other", Ctr: "c", Core: granted, Mem: 100}}
	}
	return l
}

// A cause is known only by its exact word: an event may be anybody's.
func TestCauseOfAnEvent(t *testing.T) {
	pod := objects.Single("p", objects.Share(10, 10))
	for word, want := range map[cause.Cause]cause.Cause{cause.NoGPU: cause.NoGPU, "Made up": "", "": ""} {
		if got := view.SaidIn([]corev1.Event{said(pod, word, "text")}).Cause(pod); got != want {
			t.Errorf("%q is read as %q", word, got)
		}
	}
}
