// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// pods reads pods from a list, or fails.
type pods struct {
	client.Reader
	list []corev1.Pod
	err  error
}

func (p *pods) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if p.err != nil {
		return p.err
	}
	for _, pod := range p.list {
		if pod.Namespace == key.Namespace && pod.Name == key.Name {
			pod.DeepCopyInto(into.(*corev1.Pod))
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
}

func pod(uid types.UID, phase corev1.PodPhase) []corev1.Pod {
	p := corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Status.Phase = "team", "a", uid, phase
	return []corev1.Pod{p}
}

var running = []attach.Entry{{Grace: time.Hour, Container: mode.Container{Pod: "uid-a", ID: "1"}}}

// While an idle slice is being taken back its containers are killed at once, again until they end, and then
// it is released, whatever the API server says of the pod, and without asking it.
func TestReclaim(t *testing.T) {
	index := ledger.NewIndex(&v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{
		{Pod: "uid-a", Owner: "team/a", Ctr: "c", Mem: 1, Idle: 30, Leaving: true}, {Pod: "uid-b", Owner: "team/b", Ctr: "c", Mem: 1, Idle: 30}}}}}})
	table := &attach.ContainerTable{}
	entry := func(pod types.UID, pid uint32) attach.Entry {
		return attach.Entry{PID: pid, Container: mode.Container{Pod: pod, Name: "c", ID: string(pod), Owner: "team/x", Grants: index.Grants(ledger.Key{Pod: pod, Container: "c"})}}
	}
	table.Reset([]attach.Entry{entry("uid-a", 0), entry("uid-b", 8)})
	var killed []uint32
	var gone []func()
	failure, warned := error(nil), 0
	r := New(Releaser{
		Index: func() *ledger.Index { return index }, Table: table, Publish: func() {}, Now: time.Now, Log: logr.Discard(),
		Pods: &pods{list: pod("uid-b", corev1.PodRunning)}, Live: &pods{err: errors.New("connection refused")},
		Kill: func(pid uint32, _ string, then func()) error {
			if killed = append(killed, pid); then != nil {
				gone = append(gone, then)
			}
			return failure
		},
		Warn: func(mode.Container, string, string) { warned++ },
	})
	look := func() time.Duration { return must.Get(r.decide(t.Context(), "uid-a"))(t) }
	if again := look(); again != killAgain || len(killed) > 0 {
		t.Errorf("one without a process yet: killed %v, looks again after %v", killed, again)
	}
	table.Reset([]attach.Entry{entry("uid-a", 7), entry("uid-b", 8)})
	if again := look(); again != killAgain || !slices.Equal(killed, []uint32{7}) || warned != 1 || len(table.Fenced()) > 0 {
		t.Errorf("killed %v, looks again after %v, %d events, released %v", killed, again, warned, table.Fenced())
	}
	if len(gone) != 1 {
		t.Fatalf("%d waits for its end", len(gone))
	}
	failure = unix.EPERM
	if _, err := r.decide(t.Context(), "uid-a"); err == nil || !strings.Contains(err.Error(), "idle slice is taken back") {
		t.Errorf("a kill that failed: %v", err)
	}
	failure = unix.ESRCH
	look()
	table.Detach("uid-a")
	count := func() uint64 {
		var m dto.Metric
		must.Do(t, reclaimSeconds.Write(&m))
		return m.GetHistogram().GetSampleCount()
	}
	before := count()
	gone[0]()
	if look(); count() != before+1 || len(gone) != 1 || len(r.reclaims) > 0 || !slices.Equal(table.Fenced(), []types.UID{"uid-a"}) || !slices.Equal(killed, []uint32{7, 7, 7}) {
		t.Errorf("released %v, killed %v", table.Fenced(), killed)
	}
}

// Invariant 1 and 6: slices are given back when the pod is over and the runtime
// has none of its containers, and at no other time.
func TestDecide(t *testing.T) {
	cases := map[string]struct {
		watched, server []corev1.Pod
		serverErr       error
		entries         []attach.Entry
		unsynced        bool
		released        bool
		again           bool
		err             string
	}{
		"runs":                         {watched: pod("uid-a", corev1.PodRunning), entries: running},
		"between two containers":       {watched: pod("uid-a", corev1.PodRunning)},
		"not created yet":              {watched: pod("uid-a", corev1.PodPending)},
		"finished":                     {watched: pod("uid-a", corev1.PodSucceeded), released: true},
		"failed":                       {watched: pod("uid-a", corev1.PodFailed), released: true},
		"finished, container left":     {watched: pod("uid-a", corev1.PodFailed), entries: running},
		"gone":                         {released: true},
		"gone, container left":         {entries: running, again: true},
		"gone, runtime out of sight":   {unsynced: true},
		"replaced":                     {watched: pod("uid-b", corev1.PodRunning), server: pod("uid-b", corev1.PodRunning), released: true},
		"not bound yet":                {server: pod("uid-a", corev1.PodPending), again: true},
		"finished before the watch":    {server: pod("uid-a", corev1.PodFailed), released: true},
		"API server away":              {serverErr: errors.New("connection refused"), err: "connection refused"},
		"forbidden":                    {serverErr: apierrors.NewForbidden(corev1.Resource("pods"), "a", nil), err: "forbidden"},
		"API server away, pod watched": {watched: pod("uid-a", corev1.PodRunning), serverErr: errors.New("connection refused")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			table := &attach.ContainerTable{}
			if !c.unsynced {
				table.Reset(c.entries)
			}
			published := 0
			r := New(Releaser{
				Index: granted, Table: table, Publish: func() { published++ }, Now: time.Now, Log: logr.Discard(),
				Pods: &pods{list: c.watched}, Live: &pods{list: c.server, err: c.serverErr},
				Forget: func(types.UID) error { return errors.New("its slices are in the ledger") },
			})
			again, err := r.decide(t.Context(), "uid-a")
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if (again > 0) != c.again {
				t.Errorf("looks again after %s, want %t", again, c.again)
			}
			if got := slices.Contains(table.Fenced(), "uid-a"); got != c.released || (published > 0) != c.released {
				t.Errorf("released %t, published %d times; want %t", got, published, c.released)
			}
			if !c.released {
				return
			}
			// What was decided costs the API server nothing more, nor another write.
			r.Live = &pods{err: errors.New("asked again")}
			if again, err := r.decide(t.Context(), "uid-a"); again != 0 || err != nil || published != 1 {
				t.Errorf("looked at again: again after %s, %v, published %d times", again, err, published)
			}
		})
	}
}

func granted() *ledger.Index {
	return ledger.NewIndex(&v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: "GPU-x", Slices: []v1alpha1.Slice{{Pod: "uid-a", Owner: "team/a", Ctr: "main"}}},
	}}})
}

// Once the spec is clean the pod is forgotten, but not its containers.
func TestDecideAfterTheSpec(t *testing.T) {
	table := &attach.ContainerTable{}
	var forgotten []types.UID
	r := New(Releaser{
		Index: func() *ledger.Index { return ledger.NewIndex(nil) }, Table: table, Publish: func() {}, Log: logr.Discard(),
		Forget: func(uid types.UID) error {
			forgotten = append(forgotten, uid)
			return nil
		},
	})
	decide := func(want bool, when string) {
		t.Helper()
		forgotten = nil
		must.Get(r.decide(t.Context(), "uid-a"))(t)
		if (len(forgotten) == 1) != want {
			t.Errorf("Invariant 4: %s: forgotten %v, want %t", when, forgotten, want)
		}
	}
	table.Restore([]types.UID{"uid-a"})
	decide(false, "before the runtime's list")
	table.Reset(running)
	decide(false, "with a container")
	table.Reset(nil)
	decide(true, "without a container")
	if len(table.Fenced()) != 0 {
		t.Errorf("still fenced: %v", table.Fenced())
	}
}

// world is a node with a pod whose container runs, and an API server.
type world struct {
	*Releaser
	watched, server *pods
	killed          []string
	refuses         error
	said            []string
	now             time.Time
}

func newWorld(t *testing.T, grace time.Duration) *world {
	t.Helper()
	w := &world{watched: &pods{}, server: &pods{}, now: time.Unix(1e9, 0)}
	table := &attach.ContainerTable{}
	table.Reset([]attach.Entry{{PID: 7, Grace: grace, Container: mode.Container{Pod: "uid-a", Owner: "team/a", Name: "main", ID: "1", Grants: []ledger.Grant{{UUID: "GPU-x"}}}}})
	releaser := New(Releaser{
		Index: granted, Table: table, Publish: func() {}, Log: logr.Discard(), Pods: w.watched, Live: w.server,
		Forget: func(types.UID) error { return nil }, Now: func() time.Time { return w.now },
		Kill: func(pid uint32, container string, _ func()) error {
			if w.refuses == nil {
				w.killed = append(w.killed, fmt.Sprint(pid, " ", container))
			}
			return w.refuses
		},
		Warn: func(c mode.Container, reason, message string) { w.said = append(w.said, c.Name+" "+reason+" "+message) },
	})
	w.Releaser = releaser
	return w
}

// at looks after so long and reports whether the container was killed by then.
func (w *world) at(t *testing.T, after time.Duration) bool {
	t.Helper()
	w.now = w.now.Add(after)
	must.Get(w.decide(t.Context(), "uid-a"))(t)
	return len(w.killed) > 0
}

func deleting(grace int64) []corev1.Pod {
	p := pod("uid-a", corev1.PodRunning)
	p[0].DeletionTimestamp, p[0].DeletionGracePeriodSeconds = ptr.To(metav1.Now()), &grace
	return p
}

// A container whose pod no quota counts any more is ended: after the pod's own grace where it is gone.
// One whose deletion was cut short has no hour more, whatever its own grace is.
func TestHostileGhost(t *testing.T) {
	for name, c := range map[string]struct {
		grace           time.Duration
		watched, server []corev1.Pod
		lost            bool // the ledger has lost its slices
		want            time.Duration
	}{
		"gone by force":                         {grace: 30 * time.Second, want: 40 * time.Second},
		"gone, at most an hour":                 {grace: time.Hour, want: time.Hour + late},
		"gone, without any grace":               {want: late},
		"another of its name":                   {grace: 30 * time.Second, watched: pod("uid-b", corev1.PodRunning), server: pod("uid-b", corev1.PodRunning), want: 40 * time.Second},
		"another, that claims to be its mirror": {grace: 30 * time.Second, server: mirror("uid-a"), want: 40 * time.Second},
		"gone, and not in the ledger":           {grace: 30 * time.Second, lost: true, want: 40 * time.Second},
		"its deletion was cut short":            {grace: 30 * time.Second, watched: deleting(1), want: 12 * time.Second},
		"cut short, of a grace of an hour":      {grace: time.Hour, watched: deleting(1), want: 12 * time.Second},
		"deleted, not in the watch":             {grace: 30 * time.Second, server: deleting(1), want: 12 * time.Second},
		"deleted with its own grace":            {grace: 30 * time.Second, watched: deleting(30), want: 70 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.grace)
			w.watched.list, w.server.list = c.watched, c.server
			if c.lost {
				w.Index = func() *ledger.Index { return ledger.NewIndex(nil) }
			}
			if c.want > 0 {
				again, err := w.decide(t.Context(), "uid-a")
				if again != c.want || err != nil {
					t.Errorf("looks again after %s, %v; want %s", again, err, c.want)
				}
				if w.at(t, c.want-1) {
					t.Fatalf("killed before %s", c.want)
				}
			}
			if !w.at(t, 1) || w.killed[0] != "7 1" {
				t.Fatalf("killed %q after %s", w.killed, c.want)
			}
			if len(w.said) != 1 || !strings.Contains(w.said[0], "main OrphanedContainer") || w.Ended() != 1 {
				t.Errorf("said %q, counted %d", w.said, w.Ended())
			}
			// Once: the runtime takes a moment to see it.
			if w.at(t, recheck); len(w.killed) != 1 || len(w.said) != 1 {
				t.Errorf("killed %q, said %q", w.killed, w.said)
			}
			if w.Table.Barred("uid-a") {
				t.Error("Invariant 1: fenced with a running container")
			}
			w.Table.Detach("1")
			w.watched.list, w.server.list = nil, nil
			w.at(t, 0)
			if w.Table.Barred("uid-a") == c.lost || len(w.Releaser.outlived) != 0 {
				t.Errorf("its slices are not released: %v", w.Releaser.outlived)
			}
		})
	}
}

func mirror(of string) []corev1.Pod {
	p := pod("uid-b", corev1.PodRunning)
	p[0].Annotations = map[string]string{corev1.MirrorPodAnnotationKey: of}
	return p
}

// A pod that is not seen is not gone, and nothing of one that is not deleted is ended, however
// long that lasts.
func TestOutlivedIsNotUnseen(t *testing.T) {
	const long = 1000 * time.Hour
	page := apierrors.NewGenericServerResponse(404, "get", corev1.Resource("pods"), "a", "404 page not found", 0, true)
	for name, c := range map[string]struct {
		watched, server []corev1.Pod
		failing         error
		away, plain     bool
	}{
		"it runs":                     {watched: pod("uid-a", corev1.PodRunning)},
		"the watch has a gap":         {server: pod("uid-a", corev1.PodRunning)},
		"finished":                    {watched: pod("uid-a", corev1.PodSucceeded)},
		"API server away":             {failing: errors.New("connection refused")},
		"a page of a load balancer's": {failing: page},
		"forbidden":                   {failing: apierrors.NewForbidden(corev1.Resource("pods"), "a", nil)},
		"a static pod's container, without slices": {plain: true},
		"the runtime is out of sight":              {away: true},
		"deleted with a grace of years":            {watched: deleting(100_000_000)},
		"deleted with one beyond all":              {watched: deleting(1 << 62)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, time.Second)
			w.watched.list, w.server.list, w.server.err = c.watched, c.server, c.failing
			if c.away {
				w.Table.Disconnected()
			}
			if c.plain {
				w.Index = func() *ledger.Index { return ledger.NewIndex(nil) }
				w.Table.Reset([]attach.Entry{{PID: 7, Container: mode.Container{Pod: "uid-a", Owner: "team/a", Name: "main", ID: "1"}}})
			}
			for range 3 {
				_, _ = w.decide(t.Context(), "uid-a")
				w.now = w.now.Add(long)
			}
			if len(w.killed) != 0 || len(w.said) != 0 {
				t.Errorf("killed %q, said %q", w.killed, w.said)
			}
		})
	}
}

// What shortens a deletion shortens how long its containers have, and nothing makes it longer:
// neither another deletion nor an API server that is away in between.
func TestHostileGhostThatIsDeletedAgain(t *testing.T) {
	w := newWorld(t, 30*time.Second)
	w.watched.list = deleting(1000)
	if w.at(t, 0) || w.at(t, time.Minute) {
		t.Fatal("killed in its grace")
	}
	w.watched.list = deleting(1)
	if w.at(t, 0) || w.at(t, 11*time.Second) {
		t.Fatal("killed 11 s after the second deletion")
	}
	w.watched.list, w.server.err = nil, errors.New("connection refused")
	if _, err := w.decide(t.Context(), "uid-a"); err == nil {
		t.Fatal("an API server that is away was believed")
	}
	w.server.err = nil
	if !w.at(t, time.Second) {
		t.Error("it was deleted once more, and goes on")
	}
}

// One that cannot be ended is reported and tried again, one that just ends on its own is not.
func TestOutlivedCannotBeEnded(t *testing.T) {
	w := newWorld(t, 0)
	w.refuses = fmt.Errorf("process 7: %w", unix.ESRCH)
	w.at(t, 0)
	if w.at(t, late); len(w.said) != 0 {
		t.Errorf("said %q", w.said)
	}
	w.refuses = errors.New("not permitted")
	if _, err := w.decide(t.Context(), "uid-a"); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("error %v", err)
	}
	if len(w.said) != 1 || !strings.Contains(w.said[0], "not permitted") || w.Ended() != 0 {
		t.Errorf("said %q, counted %d", w.said, w.Ended())
	}
	w.refuses = nil
	if !w.at(t, 0) || w.Ended() != 1 {
		t.Errorf("killed %q", w.killed)
	}
}
