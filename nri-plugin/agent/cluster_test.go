// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/release"
	"vernier.dev/vernier/test/must"
)

// written are the events that reach the API server, and what is changed of them.
type written struct{ made, changed chan *eventsv1.Event }

func (w written) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	w.made <- e
	return e, nil
}
func (w written) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return e, nil
}
func (w written) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	w.changed <- e
	return e, nil
}

func next(t *testing.T, of chan *eventsv1.Event) *eventsv1.Event {
	t.Helper()
	select {
	case e := <-of:
		return e
	case <-time.After(90 * time.Second):
		t.Fatal("nothing is written")
		return nil
	}
}

// Kubernetes makes one event, with the first's message, of all that are about the same
// thing for the same reason: two containers of a pod are not the same thing.
func TestContainersAreWarnedEach(t *testing.T) {
	w := written{make(chan *eventsv1.Event, 8), make(chan *eventsv1.Event, 8)}
	broadcaster := events.NewBroadcaster(w)
	defer broadcaster.Shutdown()
	must.Do(t, broadcaster.StartRecordingToSinkWithContext(t.Context()))
	r := reporter{broadcaster.NewRecorder(scheme.Scheme, "vernier-node")}
	for _, name := range []string{"main", "helper", "main"} {
		r.warnOf(mode.Container{Pod: "uid", Owner: "team/pod", Name: name}, "MPSServerFault", "its work has ended")
	}
	for range 2 {
		e := next(t, w.made)
		on := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "team", Name: "pod", UID: "uid", FieldPath: e.Regarding.FieldPath}
		want := map[string]string{"spec.containers{main}": "container main: its work has ended", "spec.containers{helper}": "container helper: its work has ended"}
		if e.Regarding != on || e.Note != want[e.Regarding.FieldPath] || e.Namespace != "team" || e.Note == "" {
			t.Errorf("%+v", e)
		}
	}
	if again := next(t, w.changed); again.Regarding.FieldPath != "spec.containers{main}" || again.Series == nil {
		t.Errorf("sent again: %+v", again)
	}
}

// Nothing of the agent's waits for a turn that client-go gives it: what it reads when pods
// end is a request for each of them.
func TestNotThrottled(t *testing.T) {
	kinds := map[string]string{
		"/api":  `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis": `{"kind":"APIGroupList","groups":[{"name":"vernier.dev","versions":[{"groupVersion":"vernier.dev/v1alpha1","version":"v1alpha1"}]}]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[
			{"name":"pods","kind":"Pod","namespaced":true},{"name":"nodes","kind":"Node"}]}`,
		"/apis/vernier.dev/v1alpha1": `{"kind":"APIResourceList","groupVersion":"vernier.dev/v1alpha1","resources":[{"name":"sliceledgers","kind":"SliceLedger"}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, kinds[r.URL.Path])
	}))
	defer server.Close()
	given := &rest.Config{Host: server.URL}
	mgr := must.Get(newManager(Options{Node: "n", Config: given, MetricsAddr: "0", HealthAddr: "0"}))(t)
	if got := mgr.GetConfig(); got.QPS >= 0 || got.RateLimiter != nil || given.QPS != 0 {
		t.Errorf("at most %v requests a second, limiter %v; given %v", got.QPS, got.RateLimiter, given.QPS)
	}
}

// Ordinary pods come and go on a node with GPUs as on any other: what they do must not
// cost the driver or the API server anything.
func TestPodsWithoutSlicesAreNotLookedAt(t *testing.T) {
	var looked []types.UID
	table := &attach.ContainerTable{}
	table.Reset(nil)
	a := &agent{ledger: &ledger.Cache{}, table: table}
	a.ledger.Set(&v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: "GPU-x", Slices: []v1alpha1.Slice{{Pod: "shares", Owner: "team/shares", Ctr: "main"}}},
	}}})
	pods := fake.NewClientBuilder().Build()
	ctx, cancel := context.WithCancel(t.Context())
	a.releaser = release.New(release.Releaser{
		Index: a.ledger.Index, Pods: pods, Live: pods, Table: table, Log: logr.Discard(),
		Forget: func(pod types.UID) error {
			looked = append(looked, pod)
			return nil
		},
		// The pod is gone, so that its slices are released.
		Publish: func() {
			looked = append(looked, table.Fenced()...)
			cancel()
		},
	})
	for _, uid := range []types.UID{"ordinary", "shares", "ordinary"} {
		a.podChanged(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, false)
	}
	must.Do(t, a.releaser.Run(ctx))
	if want := []types.UID{"shares"}; !slices.Equal(looked, want) {
		t.Errorf("looked at %q, want %q", looked, want)
	}
}

// Whether and how a pod is deleted is kept of it: containers that outlive it are ended by that.
func TestDeletionIsKept(t *testing.T) {
	now, grace := metav1.Now(), int64(7)
	kept := must.Get(slimPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: &grace}}))(t)
	if pod := kept.(*corev1.Pod); pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds != 7 {
		t.Errorf("kept %+v", pod.ObjectMeta)
	}
}

// Only a process of the container is ended, whatever number the runtime names.
func TestKill(t *testing.T) {
	process := exec.Command("sleep", "600")
	must.Do(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill() })
	pid := uint32(process.Process.Pid)
	for name, c := range map[string]struct {
		pid       uint32
		container string
		says      string
	}{
		"another's process": {pid, "0123456789abcdef", "not of container"},
		"no process":        {0, "0123456789abcdef", "no process"},
		"no container":      {pid, "", "no process"},
	} {
		if err := kill(c.pid, c.container); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	text := must.Get(os.ReadFile("/proc/self/cgroup"))(t)
	own, _, _ := strings.Cut(string(text), "\n")
	gone := make(chan struct{})
	must.Do(t, killThen(pid, own, func() { close(gone) }))
	<-gone
	if err := process.Wait(); err == nil || process.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v, want SIGKILL", err)
	}
}

type warnings []string

func (w *warnings) Warn(pod hooks.PodRef, reason, message string) {
	*w = append(*w, pod.Namespace+"/"+pod.Name+" "+string(pod.UID)+" "+pod.Container+" "+reason+": "+message)
}

// A static pod that asks for a share gets an event that it gets none, where kubectl describe looks
// for its events, and no other pod is.
func TestStaticPodsAreTold(t *testing.T) {
	sent := warnings{}
	for name, of := range map[string]struct {
		annotation string
		asks       corev1.ResourceName
	}{
		"static": {corev1.MirrorPodAnnotationKey, v1alpha1.ResourceCore}, "asks-nothing": {corev1.MirrorPodAnnotationKey, corev1.ResourceCPU},
		"usual": {"other", v1alpha1.ResourceCore},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "shown", Annotations: map[string]string{of.annotation: "own"}}}
		p.Spec.Containers = []corev1.Container{{Name: "side"}, {Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{of.asks: resource.MustParse("10")}}}}
		slim := must.Get(slimPod(p))(t)
		tellStatic(slim, &sent)
	}
	tellStatic(&v1alpha1.SliceLedger{}, &sent)
	if len(sent) != 1 || !strings.HasPrefix(sent[0], "ns/static own main StaticPodWithShare: container main asks for a share, and a static pod gets none") {
		t.Errorf("events %q", sent)
	}
}

// The admission policy vernier-node-events lets the node's token write no other events. One
// that repeats is one event with a count, as client-go makes it.
func TestEventsNameTheNode(t *testing.T) {
	w := written{make(chan *eventsv1.Event, 8), make(chan *eventsv1.Event, 8)}
	broadcaster := events.NewBroadcaster(nodeSink{w, reportingInstance("gpu-1")})
	defer broadcaster.Shutdown()
	must.Do(t, broadcaster.StartRecordingToSinkWithContext(t.Context()))
	r := reporter{broadcaster.NewRecorder(scheme.Scheme, "vernier-node")}
	for range 3 {
		r.warnOf(mode.Container{Pod: "uid", Owner: "team/pod", Name: "main"}, "MPSServerFault", "its work has ended")
	}
	if e := next(t, w.made); e.ReportingController != "vernier-node" || e.ReportingInstance != "gpu-1" {
		t.Errorf("written by %s of %s, want vernier-node of gpu-1", e.ReportingController, e.ReportingInstance)
	}
	if again := next(t, w.changed); again.Series == nil {
		t.Errorf("the second time it is %+v, want a series", again)
	}
	if n := len(w.made); n > 0 {
		t.Errorf("%d events more", n)
	}
}

func TestReportingInstance_WhenNameIsLong_IsCut(t *testing.T) {
	if got := reportingInstance(strings.Repeat("n", 253)); len(got) != 128 {
		t.Errorf("%d characters, want as many as the API server takes", len(got))
	}
}
