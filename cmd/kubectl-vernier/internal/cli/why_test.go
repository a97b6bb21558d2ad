// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// because is an event of the allocator.
func because(e *corev1.Event, reason string) *corev1.Event {
	e.Reason, e.Type = reason, corev1.EventTypeNormal
	return e
}

// The last word on the room that is kept for a pod is said beside why it waits, whichever came
// later, and so is that a pod is evicted.
func TestWhyOfReservedRoom(t *testing.T) {
	// It has room, on GPU 0 of gpu-1.
	thief := gated("team-a", "thief", time.Minute, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`)
	r := fakeClient(t, append(fixture(), thief, because(event("room", "big", 15*time.Second, eventSource, "reserved on node gpu-1 GPU 0, waits for pods a to end"), model.ReasonReserved))...)
	if out, _, err := run(t, r, "why thief -n team-a"); !strings.HasPrefix(out, "Pod team-a/thief: it waits for a place: there is room, which is reserved for big\n") || err != nil {
		t.Errorf("why another does not start: %q, error %v", out, err)
	}
	const where = "reserved on node gpu-7 GPU 3, waits for pods a, b to end"
	evicted := gated("team-a", "evicted", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`)
	evicted.Spec.SchedulingGates, evicted.Spec.NodeName, evicted.Status.Phase = nil, "gpu-7", corev1.PodRunning
	evicted.Annotations[v1alpha1.AnnotationPlacement] = `{"version":"v1alpha1","node":"gpu-7","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-a","core":10,"memMiB":10}]}}}`
	evicted.Finalizers, evicted.DeletionTimestamp = []string{"example.com/finalized"}, &metav1.Time{Time: now}
	queued := gated("team-a", "queued", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`, "example.com/quota")
	r = fakeClient(t,
		gated("team-a", "big", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":100,"memMiB":1}}}`), queued, evicted,
		event("waits", "big", 5*time.Second, eventSource, "needs 100 % compute"),
		because(event("first", "big", time.Minute, eventSource, "reserved on node gpu-1 GPU 0, about 2m0s"), model.ReasonReserved),
		because(event("room", "big", 15*time.Second, eventSource, "ends pods of lower priority: "+where+", about 40s"), model.ReasonPreempting),
		because(event("room", "queued", 15*time.Second, eventSource, where), model.ReasonReserved),
		because(event("room", "evicted", 15*time.Second, eventSource, "evicted from node gpu-7: its slices go to pod team-a/big, which has a higher priority (10)"), model.ReasonPreempted),
		// What they had says nothing of why they wait or end.
		because(event("zz", "big", 0, eventSource, "had slices"), model.ReasonReleased), because(event("zz", "evicted", 0, eventSource, "had slices"), model.ReasonReleased),
	)
	for of, want := range map[string]string{
		"why big -n team-a": "Pod team-a/big: it waits for a place: no node has a GPU that takes slices\nThe allocator's last event, 5s ago: needs 100 % compute\n" +
			"Room for it, as said 15s ago: ends pods of lower priority: " + where + ", about 25s from now\nNoGPU: label a node with GPUs: `kubectl label node NODE vernier.dev/gpu-node=true`.\n",
		"why pod queued -n team-a": "Pod team-a/queued: it waits for other gates first: example.com/quota\nOtherGates: ask the system that has set the gate; Kueue, for one, takes its own off once its queue has room.\n",
		"why evicted -n team-a":    "Pod team-a/evicted: it is evicted from node gpu-7: its slices go to pod team-a/big, which has a higher priority (10)\nPreempted: a controller makes it again; a PriorityClass above the other's keeps it.\n",
	} {
		if out, errOut, err := run(t, r, of); strings.TrimSpace(out) != strings.TrimSpace(want) || errOut != "" || err != nil {
			t.Errorf("%s: %q, stderr %q, error %v, want %q", of, out, errOut, err, want)
		}
	}
	for of, want := range map[string]string{
		"waiting -n team-a":         where + ", about 25s from now",
		"waiting -n team-a -o wide": "15s ago",
		"waiting -n team-a -o json": `"until": "` + now.Add(25*time.Second).UTC().Format(time.RFC3339) + `"`,
	} {
		if out, _, err := run(t, r, of); !strings.Contains(strings.Join(strings.Fields(out), " "), want) || strings.Contains(out, "gpu-1") || err != nil {
			t.Errorf("%s: %q, error %v, want %q", of, out, err, want)
		}
	}
}

// Of a pod that is gone its events say what became of it, until they expire.
func TestWhyOfPodsThatAreGone(t *testing.T) {
	const where = "evicted from node gpu-7: its slices go to pod team-a/big, which has a higher priority (10)"
	const had = "had slices from 2026-03-01T10:00:00Z to 2026-03-01T11:59:58Z on node gpu-7; container main: GPU 0 (GPU-a), 10 MiB, limiter"
	helps := "\nPreempted: " + cause.Preempted.Remedy() + ".\n"
	other := because(event("room", "again", 2*time.Hour, eventSource, where), model.ReasonPreempted)
	other.InvolvedObject.UID = "uid-earlier"
	r := fakeClient(t,
		event("waits", "experiment", time.Hour, eventSource, "needs 100 % compute"),
		because(event("room", "experiment", time.Minute, eventSource, where), model.ReasonPreempted),
		event("later", "experiment", time.Second, eventSource, "something else"),
		event("waits", "impatient", time.Minute, eventSource, "needs 100 % compute"),
		event("foreign", "foreign", time.Minute, "somebody", "evicted"),
		other, event("waits", "again", time.Minute, eventSource, "needs 7 % compute"),
		because(event("had", "experiment", 2*time.Second, eventSource, had), model.ReasonReleased),
		event("waits", "ended", 2*time.Hour, eventSource, "needs 100 % compute"), because(event("had", "ended", time.Minute, eventSource, had), model.ReasonReleased),
		because(event("had", "followed", 2*time.Minute, eventSource, had), model.ReasonReleased), event("later", "followed", time.Minute, eventSource, "something else"),
	)
	for of, want := range map[string]string{
		"experiment":     "Pod team-a/experiment: it is gone: it was " + where + "; it " + had + helps,
		"pod experiment": "Pod team-a/experiment: it is gone: it was " + where + "; it " + had + helps,
		"pod/experiment": "Pod team-a/experiment: it is gone: it was " + where + "; it " + had + helps,
		"ended":          "Pod team-a/ended: it is gone\nThe allocator's last event, 60s ago: " + had + "\n",
		"followed":       "Pod team-a/followed: it is gone; it " + had + "\nThe allocator's last event, 60s ago: something else\n",
		"impatient":      "Pod team-a/impatient: it is gone\nThe allocator's last event, 60s ago: needs 100 % compute\n",
		"again":          "Pod team-a/again: it is gone\nThe allocator's last event, 60s ago: needs 7 % compute\n",
	} {
		if out, errOut, err := run(t, r, "why "+of+" -n team-a"); out != want || errOut != "" || err != nil {
			t.Errorf("%s: %q, stderr %q, error %v, want %q", of, out, errOut, err, want)
		}
	}
	if out, _, err := run(t, r, "why experiment -n team-a -o jsonpath={.items[0].reason.reason}"); out != model.ReasonPreempted || err != nil {
		t.Errorf("as a document: %q, error %v", out, err)
	}
	for of, ns := range map[string]string{"foreign": "team-a", "experiment": "team-b"} {
		_, _, err := run(t, r, "why "+of+" -n "+ns)
		if want := "there is no pod " + of + " in namespace " + ns + ", and no event of Vernier names one. Events expire, after an hour by default"; !strings.Contains(errorText(err), want) {
			t.Errorf("%s: %v, want %q", of, err, want)
		}
	}
}

// A PriorityClass above 0 that no quota of the namespace is scoped to is warned of.
func TestWhyOfClassesWithoutAQuota(t *testing.T) {
	of := func(name, class string, value int32) *corev1.Pod {
		p := gated("team-a", name, time.Minute, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`)
		p.Spec.PriorityClassName, p.Spec.Priority = class, &value
		return p
	}
	scoped := func(name string, op corev1.ScopeSelectorOperator, values ...string) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Spec: corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{
			MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values}}}}}
	}
	pods := []client.Object{of("high", "production", 1000), of("low", "experiments", -10), of("none", "", 0), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "plain"}}}
	const warning = "warning: PriorityClass production is above 0, and no ResourceQuota of namespace team-a is scoped to it: "
	for _, tt := range []struct {
		pod    string
		quota  *corev1.ResourceQuota
		warned bool
	}{
		{"high", nil, true}, {"low", nil, false}, {"none", nil, false},
		{"high", scoped("a", corev1.ScopeSelectorOpIn, "production"), false}, {"high", scoped("a", corev1.ScopeSelectorOpIn, "experiments"), true},
		{"high", scoped("a", corev1.ScopeSelectorOpExists), false}, {"high", scoped("a", corev1.ScopeSelectorOpDoesNotExist), true},
		{"high", scoped("a", corev1.ScopeSelectorOpNotIn, "experiments"), false}, {"high", scoped("a", corev1.ScopeSelectorOpNotIn, "production"), true},
	} {
		all := pods
		if tt.quota != nil {
			all = append(slices.Clone(pods), tt.quota)
		}
		if _, errOut, err := run(t, fakeClient(t, all...), "why "+tt.pod+" -n team-a"); strings.HasPrefix(errOut, warning) != tt.warned || (errOut != "") != tt.warned || err != nil {
			t.Errorf("%s, %v: stderr %q, error %v, warned %v", tt.pod, tt.quota, errOut, err, tt.warned)
		}
	}
	denied := interceptor.NewClient(fakeClient(t, pods...), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, is := list.(*corev1.ResourceQuotaList); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "resourcequotas"}, "", errors.New("no"))
		}
		return c.List(ctx, list, opts...)
	}})
	if _, errOut, err := run(t, denied, "why high -n team-a"); !strings.HasPrefix(errOut, "left out: the quotas of namespace team-a") || err != nil {
		t.Errorf("without the right to read quotas: stderr %q, error %v", errOut, err)
	}
}

// What stands around a pod that keeps it from starting is read with it; what may not be read
// is said, and the rest is shown.
func TestWhyOfWhatStandsAround(t *testing.T) {
	const shares = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":90,"memPercent":50}}}`
	placed := func(name, claim string) *corev1.Pod {
		p := gated("team-a", name, time.Hour, shares)
		p.Spec.SchedulingGates, p.Spec.SchedulerName, p.Status.Phase = nil, "volcano", corev1.PodPending
		p.Annotations[v1alpha1.AnnotationPlacement] = `{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-a","core":10,"memMiB":10}]}}}`
		if claim != "" {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		}
		return p
	}
	claim := func(name, class, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name)},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: volume}}
	}
	member := func(name string) *corev1.Pod {
		p := placed(name, "")
		p.Status.Phase, p.Spec.NodeName = corev1.PodRunning, "gpu-1"
		p.Labels, p.Annotations[podrequest.AnnotationKueueTotal] = map[string]string{podrequest.LabelKueue: "train"}, "3"
		return p
	}
	owned := func(p *corev1.Pod, kind, name string, labels map[string]string) *corev1.Pod {
		p.Labels = labels
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)}}
		return p
	}
	app := map[string]string{"app": "server"}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "server-2",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "server", UID: "uid-server", Controller: ptr.To(true)}}}}
	failed := event("failed", "slow", time.Minute, "persistentvolume-controller", "no quota")
	failed.Reason, failed.InvolvedObject.Kind = "ProvisioningFailed", "PersistentVolumeClaim"
	touched := event("touched", "touched", time.Minute, "volcano", "0/1 nodes")
	r := fakeClient(t, placed("unbound", "slow"), claim("slow", "fast", ""), failed, placed("static", "disk"), claim("disk", "", "pv-1"), placed("ignored", ""), placed("touched", ""), touched,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "x.example.com"}, placed("lost", "none"), member("train-0"), member("train-1"),
		owned(gated("team-a", "db-0", time.Hour, shares), "StatefulSet", "db", map[string]string{appsv1.ControllerRevisionHashLabelKey: "db-1"}),
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "db"}, Status: appsv1.StatefulSetStatus{UpdateRevision: "db-2"}},
		owned(gated("team-a", "new", time.Hour, shares), "ReplicaSet", "server-2", app), owned(placed("old", ""), "ReplicaSet", "server-1", app), set,
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "server"}, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: app}}})
	denied := interceptor.NewClient(r, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		switch o.(type) {
		case *storagev1.StorageClass, *corev1.PersistentVolume, *appsv1.StatefulSet, *appsv1.ReplicaSet:
			return apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprintf("%T", o)}, key.Name, errors.New("no"))
		}
		return c.Get(ctx, key, o, opts...)
	}})
	for _, tt := range []struct{ pod, want, left, unread string }{
		{"unbound", "PersistentVolumeClaim slow is not bound: provisioner x.example.com of its storage class fast has made no PersistentVolume; its last event: ProvisioningFailed: no quota",
			"PersistentVolumeClaim slow is not bound: its storage class fast has made no PersistentVolume; its last event: ProvisioningFailed: no quota", "*v1.StorageClass"},
		{"static", "PersistentVolumeClaim disk waits for PersistentVolume pv-1, which does not exist: create it", "PersistentVolumeClaim disk waits for PersistentVolume pv-1 to be bound to it", "*v1.PersistentVolume"},
		{"lost", "PersistentVolumeClaim none does not exist: create it", "PersistentVolumeClaim none does not exist: create it", ""},
		{"db-0", "it has an earlier template of StatefulSet/db (db-1, now db-2)", "it waits for a place", "*v1.StatefulSet"},
		{"new", `patch deployment server -p '{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":1}}}}'`, "it waits for a place", "*v1.ReplicaSet"},
		{"ignored", `no scheduler "volcano" has looked at it since`, `no scheduler "volcano" has looked at it since`, ""},
		{"touched", "the scheduler has not bound it yet: DoesNotFit: 0/1 nodes", "the scheduler has not bound it yet: DoesNotFit: 0/1 nodes", ""},
		{"train-0", "Kueue's pod group team-a/train has fallen below its minimum: 2 of the 3 pods that start together", "has fallen below its minimum", ""},
	} {
		if out, errOut, err := run(t, r, "why "+tt.pod+" -n team-a"); !strings.Contains(out, tt.want) || errOut != "" || err != nil {
			t.Errorf("%s: %q, stderr %q, error %v, want %q", tt.pod, out, errOut, err, tt.want)
		}
		out, errOut, err := run(t, denied, "why "+tt.pod+" -n team-a")
		if !strings.Contains(out, tt.left) || !strings.Contains(errOut, tt.unread) || (tt.unread == "") != (errOut == "") || err != nil {
			t.Errorf("%s, of which not all may be read: %q, stderr %q, error %v, want %q and %q", tt.pod, out, errOut, err, tt.left, tt.unread)
		}
	}
}

// A pod that asks in the words of another system is said so, as explain says it of a manifest.
func TestWhyOfOtherDialects(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, limits ...corev1.ResourceName) *corev1.Pod {
		p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}, Status: corev1.PodStatus{Phase: phase}}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
		for _, l := range limits {
			p.Spec.Containers[0].Resources.Limits[l] = resource.MustParse("1")
		}
		return p
	}
	for _, tt := range []struct {
		pod     *corev1.Pod
		dialect string
	}{
		{pod("hami", corev1.PodPending, "nvidia.com/gpu", "nvidia.com/gpumem"), "hami"},
		{pod("gpu-manager", corev1.PodPending, "tencent.com/vcuda-core", "tencent.com/vcuda-memory"), "gpu-manager"},
		{pod("runs", corev1.PodRunning, "nvidia.com/gpu", "nvidia.com/gpumem"), ""}, // HAMi's own
		{pod("other", corev1.PodPending, "example.com/gpu"), ""},
	} {
		input = bytes.NewReader(must.Get(json.Marshal(tt.pod))(t))
		explained, _, _ := run(t, nil, "explain -f -")
		want := "says what it waits for\n"
		if tt.dialect != "" {
			_, hint, _ := strings.Cut(explained, "hint: ")
			want += hint
		}
		out, _, err := run(t, fakeClient(t, tt.pod), "why "+tt.pod.Name+" -n team-a")
		if !strings.HasSuffix(out, want) || !strings.Contains(want, tt.dialect) || err != nil {
			t.Errorf("%s: %q, error %v, want %q", tt.pod.Name, out, err, want)
		}
	}
}
