// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apply "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/kueue"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
	"vernier.dev/vernier/webhook/podtemplate"
)

// templates reads templates as admission does with the chart's defaults.
func templates(known *classes.Set) kueue.Read { return podtemplate.Admit(podtemplate.Rules{}, known) }

// queued is a stage beside Kueue, of which the Workloads are here: a test says what Kueue does.
type queued struct {
	*stage
	workloads map[string]*unstructured.Unstructured
	version   int
}

func newQueued(t *testing.T, nodes int, edits ...func(*world)) *queued {
	q := &queued{stage: newStage(t, nodes, edits...), workloads: map[string]*unstructured.Unstructured{}}
	q.patchOther = q.patch
	for i := range nodes {
		q.setNode(fmt.Sprint("n", i), counted)
	}
	q.put("admissionchecks", map[string]any{"metadata": map[string]any{"name": "placement"}, "spec": map[string]any{"controllerName": v1alpha1.AdmissionCheckController}})
	q.put("resourceflavors", map[string]any{"metadata": map[string]any{"name": "any"}})
	return q
}

// counted is a node that shows all that admission has a pod ask for.
func counted(n *corev1.Node) {
	n.Status.Allocatable[v1alpha1.ResourceGPUs], n.Status.Allocatable[v1alpha1.ResourceMemPercent] = resource.MustParse("200"), resource.MustParse("200")
}

// put has the replica see an object.
func (q *queued) put(resource string, object map[string]any) {
	q.t.Helper()
	for _, r := range q.allocator.workloads.Resources() {
		if r.Name != resource {
			continue
		}
		// As a watch does, which has its own copy, of JSON.
		raw, err := json.Marshal(object)
		u := &unstructured.Unstructured{}
		q.must(err)
		q.must(json.Unmarshal(raw, &u.Object))
		obj, err := r.Trim(u)
		q.must(err)
		r.Put(obj)
	}
}

// patch is the API server's answer to a patch of an object that is not of Kubernetes.
func (q *queued) patch(u *unstructured.Unstructured, p client.Patch) error {
	if u.GetKind() == "AdmissionCheck" {
		return nil
	}
	body, err := p.Data(u)
	q.must(err)
	patch, err := apply.DecodePatch(body)
	q.must(err)
	was, err := q.workloads[u.GetName()].MarshalJSON()
	q.must(err)
	is, err := patch.Apply(was)
	if err != nil {
		return apierrors.NewInvalid(u.GroupVersionKind().GroupKind(), u.GetName(), nil)
	}
	q.must(u.UnmarshalJSON(is))
	q.bump(u)
	q.workloads[u.GetName()] = u.DeepCopy()
	return nil
}

func (q *queued) bump(u *unstructured.Unstructured) {
	q.version++
	u.SetResourceVersion(fmt.Sprint(q.version))
}

// submit has Kueue reserve quota for so many pods with these limits.
func (q *queued) submit(name string, pods int, limits map[string]any, annotations map[string]any, spec ...map[string]any) {
	podSpec := map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "c", "image": "i", "resources": map[string]any{"limits": limits}}}}
	for _, more := range spec {
		for key, value := range more {
			podSpec[key] = value
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
		"metadata": map[string]any{"namespace": "ns", "name": name, "uid": "uid-" + name},
		"spec": map[string]any{"podSets": []any{map[string]any{"name": "main", "count": int64(pods), "template": map[string]any{
			"metadata": map[string]any{"annotations": annotations}, "spec": podSpec}}}},
		"status": map[string]any{
			"conditions":      []any{map[string]any{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}},
			"admission":       map[string]any{"clusterQueue": "q", "podSetAssignments": []any{map[string]any{"name": "main", "count": int64(pods), "flavors": map[string]any{"vernier.dev/gpu-core": "any"}}}},
			"admissionChecks": []any{map[string]any{"name": "placement", "state": "Pending", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}},
		},
	}}
	q.show(u)
	q.settle()
}

func (q *queued) show(u *unstructured.Unstructured) {
	q.bump(u)
	q.workloads[u.GetName()] = u
	q.put("workloads", u.Object)
}

// settle has all be decided and written.
func (q *queued) settle() {
	for range 3 {
		q.work()
		q.must(q.allocator.workloads.Flush(context.Background()))
	}
}

// condition is Kueue saying something of a Workload.
func (q *queued) condition(name, kind, status string) {
	u := q.workloads[name].DeepCopy()
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	conditions = append(conditions, map[string]any{"type": kind, "status": status, "reason": kind, "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"})
	q.must(unstructured.SetNestedSlice(u.Object, conditions, "status", "conditions"))
	q.show(u)
	q.settle()
}

// verdict asserts what the check says.
func (q *queued) verdict(name, state, text string) map[string]any {
	q.t.Helper()
	checks, _, _ := unstructured.NestedSlice(q.workloads[name].Object, "status", "admissionChecks")
	c := checks[0].(map[string]any)
	if c["state"] != state || !strings.Contains(c["message"].(string), text) {
		q.t.Fatalf("%s: %v %q, want %s %q", name, c["state"], c["message"], state, text)
	}
	return c
}

func limitsOf(core, mib int) map[string]any {
	return map[string]any{"vernier.dev/gpu-core": fmt.Sprint(core), "vernier.dev/gpu-mem-mib": fmt.Sprint(mib)}
}

// of has a pod take the room that is reserved for a Workload.
func of(workload string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationReservedFor, "uid-"+workload)
	}
}

// What fits is reserved, for the Workload's pods alone. Each takes its part, and what no pod has come for
// is given up after a while.
func TestKueue_Fits(t *testing.T) {
	q := newQueued(t, 1) // two devices
	q.submit("w", 2, limitsOf(100, objects.DeviceMiB), nil)
	check := q.verdict("w", "Ready", "room for 2 pods is reserved for 5m0s")
	if got := fmt.Sprint(check["podSetUpdates"]); got != "[map[annotations:map[vernier.dev/reserved-for:uid-w] name:main]]" {
		t.Errorf("updates %s", got)
	}
	q.condition("w", "Admitted", "True")
	q.add("other", 10, 10)
	q.add("elsewhere", 10, 10, of("w"), func(p *corev1.Pod) { p.Namespace = "ns2" })
	q.work()
	q.expect("other elsewhere")
	q.add("w-0", 100, objects.DeviceMiB, of("w"))
	q.work()
	q.expect("w-0:n0 other elsewhere")
	if r := q.reserved("w")[0]; len(r.Plans) != 1 {
		t.Errorf("reserved %+v after a pod has its part", r)
	}
	q.pass(kueue.Reserved)
	q.expect("other:n0 elsewhere:n0", "the reservation has expired")
	q.reserved()
}

// Once all pods have come nothing is reserved, and nothing is when quota is taken back.
func TestKueue_ReservationsEnd(t *testing.T) {
	q := newQueued(t, 1)
	q.submit("w", 1, limitsOf(60, 100), nil)
	q.condition("w", "Admitted", "True")
	q.reserved("w")
	q.add("w-0", 60, 100, of("w"))
	q.work()
	q.expect("w-0:n0")
	q.pass(time.Second)
	q.reserved()
	q.submit("evicted", 1, limitsOf(100, 100), nil)
	q.reserved("evicted")
	q.condition("evicted", "Evicted", "True")
	q.reserved()
}

// Without room a Workload is evicted, and tried again after a pause that grows: while it is evicted the check
// says so, until Kueue has noted the pause.
func TestKueue_Retries(t *testing.T) {
	q := newQueued(t, 1)
	q.add("a", 30, 10)
	q.work()
	q.add("b", 80, 10)
	q.run()
	for _, tt := range []struct{ tried, want int64 }{{1, 15}, {2, 30}, {5, 240}, {6, 300}, {60, 300}} {
		name := fmt.Sprint("w", tt.tried)
		q.submit(name, 1, limitsOf(100, 100), nil)
		why := "room for 0 of 1 pods; pod " + name + "/0: "
		if check := q.verdict(name, "Retry", why); check["requeueAfterSeconds"] != nil {
			t.Errorf("evicted after a pause, in which it keeps its quota: %v", check)
		}
		q.evict(name, tt.tried)
		if got := q.verdict(name, "Retry", why)["requeueAfterSeconds"]; fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("tried %d times, again in %v s, want %d", tt.tried, got, tt.want)
		}
		q.noted(name)
		if check := q.verdict(name, "Pending", fmt.Sprintf("tried again after %v: %s", time.Duration(tt.want)*time.Second, why)); check["requeueAfterSeconds"] != nil || fmt.Sprint(check["retryCount"]) != fmt.Sprint(tt.tried) {
			t.Errorf("in the queue: %v", check)
		}
	}
	q.reserved()
}

// evict is Kueue evicting a Workload whose check has said Retry so many times.
func (q *queued) evict(name string, tried int64) {
	u := q.workloads[name].DeepCopy()
	q.must(unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "placement", "state": "Pending", "message": "Reset to Pending after eviction. Previously: Retry",
		"lastTransitionTime": "1970-01-01T00:00:00Z", "retryCount": tried}}, "status", "admissionChecks"))
	q.must(unstructured.SetNestedSlice(u.Object, []any{
		map[string]any{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"},
		map[string]any{"type": "Evicted", "status": "True", "reason": "AdmissionCheck", "message": "", "lastTransitionTime": q.clock.Now().UTC().Format(time.RFC3339)},
	}, "status", "conditions"))
	unstructured.RemoveNestedField(u.Object, "status", "admission")
	q.show(u)
	q.settle()
}

// noted is Kueue noting the pause.
func (q *queued) noted(name string) {
	u := q.workloads[name].DeepCopy()
	q.must(unstructured.SetNestedField(u.Object, "1970-01-01T01:00:00Z", "status", "requeueState", "requeueAt"))
	q.show(u)
	q.settle()
}

// A pause that is over, or that Kueue has noted by itself, is not written; nor is one of a Workload that was
// evicted for something else.
func TestKueue_PausesEnd(t *testing.T) {
	q := newQueued(t, 1)
	q.add("a", 100, 10)
	q.add("b", 100, 10)
	q.run()
	q.submit("w", 1, limitsOf(100, 100), nil)
	q.evict("w", 1)
	q.verdict("w", "Retry", "")
	q.clock.Step(time.Minute)
	q.show(q.workloads["w"].DeepCopy())
	q.settle()
	q.verdict("w", "Pending", "tried again after 15s") // Kueue has not noted it
	version := q.workloads["w"].GetResourceVersion()
	u := q.workloads["w"].DeepCopy()
	q.must(unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": "Evicted", "status": "True", "reason": "Preempted", "message": "", "lastTransitionTime": q.clock.Now().UTC().Format(time.RFC3339)}}, "status", "conditions"))
	q.show(u)
	q.settle()
	if got := q.workloads["w"].GetResourceVersion(); got != fmt.Sprint(q.version) || version == got {
		t.Errorf("a Workload that was preempted is written: %v", q.workloads["w"].Object["status"])
	}
	q.verdict("w", "Pending", "")
}

// What fits once pods that are ending have gone waits for them, and is reserved then.
func TestKueue_WaitsForPodsThatEnd(t *testing.T) {
	q := newQueued(t, 1)
	q.add("a", 100, 10)
	q.add("b", 100, 10)
	q.run()
	q.delete("a")
	q.work()
	q.submit("w", 1, limitsOf(100, 100), nil)
	q.verdict("w", "Pending", "waits for pods that are ending")
	q.end()
	q.settle()
	q.verdict("w", "Ready", "room for 1 pods is reserved")
}

// What would not fit if nothing else ran is rejected, as are pods that admission would refuse. Where no
// node has the flavor's labels one may come.
func TestKueue_Rejects(t *testing.T) {
	q := newQueued(t, 2) // four devices
	q.put("resourceflavors", map[string]any{"metadata": map[string]any{"name": "any"}, "spec": map[string]any{"nodeLabels": map[string]any{"pool": "a"}}})
	q.submit("nowhere", 5, limitsOf(100, 100), nil)
	q.verdict("nowhere", "Retry", "room for 0 of 5 pods")
	q.setNode("n0", func(n *corev1.Node) { counted(n); n.Labels["pool"] = "a" })
	q.submit("many", 3, limitsOf(100, 100), nil)
	q.verdict("many", "Rejected", "would not be enough if nothing else ran")
	q.submit("large", 1, limitsOf(10, objects.DeviceMiB+1), nil)
	q.verdict("large", "Rejected", "would not be enough if nothing else ran")
	q.submit("two", 2, limitsOf(100, 100), nil)
	q.verdict("two", "Ready", "")
	q.submit("wrong", 1, limitsOf(10, 10), map[string]any{v1alpha1.AnnotationMode: "none"})
	q.verdict("wrong", "Rejected", "spec.podSets[main].template: metadata.annotations[vernier.dev/mode]")
	q.submit("plain", 1, map[string]any{"cpu": "1"}, nil)
	q.verdict("plain", "Ready", "no pod asks for a share of a GPU")
}

// Pods that may evict others come, and nothing is reserved for them.
func TestKueue_Preempts(t *testing.T) {
	q := newQueued(t, 1)
	q.add("low", 100, 10)
	q.add("low2", 100, 10)
	q.run()
	u := map[string]any{"priorityClassName": "high"}
	q.submit("w", 1, limitsOf(100, 100), nil, u)
	q.verdict("w", "Retry", "")
	w := q.workloads["w"].DeepCopy()
	q.must(unstructured.SetNestedField(w.Object, int64(10), "spec", "priority"))
	q.must(unstructured.SetNestedMap(w.Object, map[string]any{"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}, "spec", "priorityClassRef"))
	check := q.verdict("w", "Retry", "")
	check["state"] = "Pending"
	q.must(unstructured.SetNestedSlice(w.Object, []any{check}, "status", "admissionChecks"))
	q.show(w)
	q.settle()
	q.verdict("w", "Ready", "the pods evict others of lower priority")
	q.reserved()
}

// A new leader reserves the rest for Workloads whose pods have not all come, before it decides on anything.
func TestKueue_NewLeader(t *testing.T) {
	q := newQueued(t, 1)
	q.submit("w", 2, limitsOf(100, 100), nil)
	q.condition("w", "Admitted", "True")
	q.add("w-0", 100, 100, of("w"))
	q.run()
	q.allocator.end()
	q.reserved()
	q.add("other", 100, 100)
	q.read()
	q.clock.Step(time.Minute)
	q.allocator.begin(context.Background(), q.queue)
	q.settle()
	q.expect("w-0:n0 other")
	r := q.reserved("w")
	if len(r) != 1 || len(r[0].Plans) != 1 || r[0].Kind != reservation.Workload || !r[0].Expires.Equal(time.Unix(0, 0).Add(kueue.Reserved)) {
		t.Errorf("reserved %+v", r[0])
	}
	q.add("w-1", 100, 100, of("w"))
	q.work()
	q.expect("w-0:n0 w-1:n0 other")
}

// A Workload of pods that exist is judged by them, which wait at Kueue's gate.
func TestKueue_PlainPods(t *testing.T) {
	q := newQueued(t, 1)
	gate := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"})
	}
	q.add("p", 70, 10, gate)
	q.work()
	u := &unstructured.Unstructured{}
	q.submit("w", 1, map[string]any{"cpu": "1"}, nil)
	q.verdict("w", "Ready", "no pod asks for a share")
	u = q.workloads["w"].DeepCopy()
	u.SetName("of-p")
	u.SetUID("uid-of-p")
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: q.get("p").UID}})
	q.must(unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "placement", "state": "Pending", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}}, "status", "admissionChecks"))
	q.show(u)
	q.settle()
	q.verdict("of-p", "Ready", "room for 1 pods is reserved")
	q.condition("of-p", "Admitted", "True")
	q.add("o1", 100, 10)
	q.add("o2", 100, 10)
	q.work()
	q.edit("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = p.Spec.SchedulingGates[:1]; of("of-p")(p) })
	q.expect("p:n0 o1:n0 o2")
}

// Pods are judged as they will be: as many as Kueue counts, with labels and tolerations of its flavors, by the
// minimum and the dialects of admission. Beyond a bound nothing is reserved.
func TestKueue_Templates(t *testing.T) {
	q := newQueued(t, 1)
	q.put("resourceflavors", map[string]any{"metadata": map[string]any{"name": "any"}, "spec": map[string]any{
		"nodeLabels": map[string]any{"pool": "a"}, "tolerations": []any{map[string]any{"key": "gpu", "operator": "Exists"}}}})
	q.setNode("n0", func(n *corev1.Node) {
		counted(n)
		n.Labels["pool"] = "a"
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	})
	q.submit("partly", 5, limitsOf(100, 100), nil)
	q.verdict("partly", "Rejected", "")
	u := q.workloads["partly"].DeepCopy()
	assignments, _, _ := unstructured.NestedSlice(u.Object, "status", "admission", "podSetAssignments")
	assignments[0].(map[string]any)["count"] = int64(2)
	q.must(unstructured.SetNestedSlice(u.Object, assignments, "status", "admission", "podSetAssignments"))
	check := q.verdict("partly", "Rejected", "")
	check["state"] = "Pending"
	q.must(unstructured.SetNestedSlice(u.Object, []any{check}, "status", "admissionChecks"))
	q.show(u)
	q.settle()
	q.verdict("partly", "Ready", "room for 2 pods is reserved")
	q.submit("many", 2001, limitsOf(1, 1), nil)
	q.verdict("many", "Ready", "nothing is reserved: it has more than 2000 pods")
}

// A flavor or a check that comes later is no error, and a check of somebody else's is left alone.
func TestKueue_OtherChecks(t *testing.T) {
	q := newQueued(t, 1)
	q.put("admissionchecks", map[string]any{"metadata": map[string]any{"name": "placement"}, "spec": map[string]any{"controllerName": "example.com/other"}})
	q.submit("w", 1, limitsOf(100, 100), nil)
	q.verdict("w", "Pending", "")
	q.put("admissionchecks", map[string]any{"metadata": map[string]any{"name": "placement"}, "spec": map[string]any{"controllerName": v1alpha1.AdmissionCheckController}})
	q.settle()
	q.verdict("w", "Ready", "")
}

// Where Kueue is no longer served its Workloads are forgotten; what has changed since it was judged is
// judged again.
func TestKueue_Changes(t *testing.T) {
	q := newQueued(t, 1)
	q.submit("w", 1, limitsOf(100, 100), nil)
	u := q.workloads["w"].DeepCopy()
	check := q.verdict("w", "Ready", "")
	check["state"] = "Pending"
	delete(check, "podSetUpdates")
	q.must(unstructured.SetNestedSlice(u.Object, []any{check}, "status", "admissionChecks"))
	q.show(u)
	q.work()
	// Before it is written Kueue changes the state itself.
	other := u.DeepCopy()
	check["state"] = "Retry"
	q.must(unstructured.SetNestedSlice(other.Object, []any{check}, "status", "admissionChecks"))
	q.bump(other)
	q.workloads["w"] = other
	q.settle()
	q.verdict("w", "Retry", "room for 1 pods is reserved")
	for _, r := range q.allocator.workloads.Resources() {
		r.State(served.Absent)
	}
	q.pass(time.Second)
	q.verdict("w", "Retry", "")
	if !podstate.OlderVersion(u.GetResourceVersion(), q.workloads["w"].GetResourceVersion()) {
		t.Error("it was written without a change")
	}
}

// A Workload whose namespace the replica has not seen yet is none without shares.
func TestKueue_WhenNamespaceIsUnknown_Waits(t *testing.T) {
	q := newQueued(t, 1)
	known := false
	q.allocator.workloads.Enabled = func(string) (bool, bool) { return known, known }
	q.submit("w", 3, limitsOf(100, objects.DeviceMiB), nil)
	q.verdict("w", "Pending", "")
	known = true
	q.pass(time.Minute)
	q.settle()
	q.verdict("w", "Rejected", "room for 2 of 3 pods")
}
