// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

// server is the API server of one test, seen by an administrator, a user and the
// node agents.
type server struct {
	t   *testing.T
	cfg *rest.Config
	client.Client
	// clock is the replicas'.
	clock clock.WithTicker
	// options are the replicas' beside the defaults.
	options Options
	// agents are the node agents' pods, where the test has them.
	agents *agents.Agents
	// watches, if set, are those of the replicas that run from then on.
	watches *watches
	// again is how many times a replica was started again that had lost its lease.
	again atomic.Int32
}

// start gives the test an API server that no other uses meanwhile. The tests that have
// one run beside each other: they mostly wait, for leases to end and for what is watched.
func start(t *testing.T) *server {
	t.Helper()
	t.Parallel()
	return serve(t, pool.borrow(t))
}

// startWith starts an API server for the test alone, for those that change what it
// serves.
func startWith(t *testing.T, flags map[string]string) *server {
	t.Helper()
	t.Parallel()
	return serve(t, launch(t, flags))
}

// quiet keeps the libraries' logs out of the tests' output. Tests run beside each other.
var quiet = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

// launch starts an API server as the tests want it, with flags of its own.
func launch(t testing.TB, flags map[string]string) *rest.Config {
	t.Helper()
	quiet()
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/policy.yaml", "admission/allocator-policy.yaml"}, Flags: flags})
	if err := apiserver.Client(t, cfg).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "ns", Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func serve(t *testing.T, cfg *rest.Config) *server {
	t.Helper()
	return &server{t: t, cfg: cfg, Client: apiserver.Client(t, cfg), clock: hurried{time.Now()}, options: Options{Page: "0"}}
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// await waits for a condition that must come true; slow machines are given time.
func (s *server) await(what string, done func(context.Context) (bool, error)) {
	s.t.Helper()
	if err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, 90*time.Second, true, done); err != nil {
		s.t.Fatalf("waiting for %s: %v", what, err)
	}
}

// addNode adds a node with two devices of 1000 MiB and its ledger, ready.
func (s *server) addNode(name string, edits ...func(*corev1.Node)) {
	s.t.Helper()
	node := objects.Node(name)
	node.UID = ""
	for _, e := range edits {
		e(node)
	}
	status, taints := node.Status, node.Spec.Taints
	s.must(s.Create(s.t.Context(), node))
	node.Spec.Taints = taints // admission adds "not ready"
	s.must(s.Update(s.t.Context(), node))
	node.Status = status
	node.Status.Capacity = status.Allocatable
	s.must(s.Status().Update(s.t.Context(), node))
	ledger := objects.Ledger(name)
	ledger.UID = ""
	s.must(s.Create(s.t.Context(), ledger))
	s.must(s.Status().Update(s.t.Context(), objects.WithStatus(ledger)))
}

// addPod creates a gated pod with one container.
func (s *server) addPod(name string, share v1alpha1.Share, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := objects.Pod(name, map[string]v1alpha1.Share{"train": share})
	for _, e := range edits {
		e(p)
	}
	s.must(s.Create(s.t.Context(), p))
	return p
}

func (s *server) pod(name string) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, p))
	return p
}

func (s *server) ledger(name string) *v1alpha1.SliceLedger {
	s.t.Helper()
	l := &v1alpha1.SliceLedger{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Name: name}, l))
	return l
}

// awaitPlaced waits until the pod is let go, and checks that pin, annotation and
// ledger say the same.
func (s *server) awaitPlaced(name string) *v1alpha1.Placement {
	s.t.Helper()
	var p *corev1.Pod
	s.await("pod "+name+" to be placed", func(context.Context) (bool, error) {
		p = s.pod(name)
		return len(p.Spec.SchedulingGates) == 0, nil
	})
	placed, err := v1alpha1.ParsePlacement(p.Annotations[v1alpha1.AnnotationPlacement])
	s.must(err)
	shares, err := v1alpha1.ParseShares(p.Annotations[v1alpha1.AnnotationShares])
	s.must(err)
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		pin := term.MatchFields[len(term.MatchFields)-1]
		if pin.Key != "metadata.name" || len(pin.Values) != 1 || pin.Values[0] != placed.Node {
			s.t.Errorf("pod %s is pinned by %+v, want node %s", name, pin, placed.Node)
		}
	}
	if !grants.Serves(s.ledger(placed.Node), p.UID, shares.Containers) {
		s.t.Errorf("pod %s is placed on %s, whose ledger does not have its slices", name, placed.Node)
	}
	return placed
}

// awaitEvent waits for an event with that text. A leader that came in between says nothing
// again that its predecessor said with other figures.
func (s *server) awaitEvent(pod, reason, text string) {
	s.t.Helper()
	var seen []string
	says := func(e string) bool {
		return strings.Contains(e, text) || s.again.Load() > 0 && strings.Contains(withoutFigures.ReplaceAllString(e, ""), withoutFigures.ReplaceAllString(text, ""))
	}
	err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, 90*time.Second, true, func(ctx context.Context) (bool, error) {
		seen = s.events(pod)
		for _, e := range seen {
			if strings.HasPrefix(e, reason+": ") && says(e) {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		s.t.Fatalf("no event %s on pod %s with %q; there are %q", reason, pod, text, seen)
	}
}

func (s *server) events(pod string) []string {
	s.t.Helper()
	list := &corev1.EventList{}
	s.must(s.List(s.t.Context(), list, client.InNamespace("ns"), client.MatchingFields{"involvedObject.uid": string(s.pod(pod).UID)}))
	var texts []string
	for _, e := range list.Items {
		texts = append(texts, e.Reason+": "+e.Message)
	}
	return texts
}

// release is the node agent that publishes the pods that are gone for good.
func (s *server) release(node string, pods ...types.UID) {
	s.t.Helper()
	s.await("the release on "+node, func(ctx context.Context) (bool, error) {
		l := s.ledger(node)
		l.Status.Released = pods
		return s.Status().Update(ctx, l) == nil, nil
	})
}

// process is a replica as it runs in production, whose network the test can cut.
type process struct {
	server *server
	cut    atomic.Bool
	// fail, when set, decides which requests get lost.
	fail atomic.Pointer[func(*http.Request) bool]
	// again is how many times it was started again.
	again atomic.Int32
	stop  context.CancelFunc
	ended chan error
}

var errCut = errors.New("connection cut by the test")

type wire struct {
	p    *process
	next http.RoundTripper
}

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if fail := w.p.fail.Load(); w.p.cut.Load() || fail != nil && (*fail)(r) {
		return nil, errCut
	}
	if w.p.server.watches != nil {
		return w.p.server.watches.roundTrip(r, w.next)
	}
	return w.next.RoundTrip(r)
}

// run starts a replica with the rights of the allocator's service account. One that loses
// its lease on a machine that has no time for it is started again, as its Deployment would.
func (s *server) run() *process {
	s.t.Helper()
	p := &process{server: s, ended: make(chan error, 1)}
	cfg := apiserver.AsServiceAccount(s.cfg, v1alpha1.AllocatorServiceAccount)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return wire{p, next} })
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	start := func() error {
		ctx, end := context.WithCancel(ctx)
		defer end()
		mgr, err := NewManager(cfg, "0", "0")
		if err == nil {
			err = setup(ctx, mgr, s.options, templates, s.clock, s.agents)
		}
		if err == nil {
			err = mgr.Start(ctx)
		}
		return err
	}
	go func() {
		err := start()
		for err != nil && err.Error() == "leader election lost" && !p.cut.Load() {
			s.again.Add(1)
			s.t.Logf("the allocator has lost its lease and is started again, for the %d. time", p.again.Add(1))
			err = start()
		}
		if err != nil && !p.cut.Load() && ctx.Err() == nil {
			s.t.Errorf("the allocator has ended: %v", err)
		}
		p.ended <- err
	}()
	s.t.Cleanup(p.end)
	return p
}

// end stops the replica in good order.
func (p *process) end() {
	p.stop()
	if err, first := <-p.ended; first {
		close(p.ended)
		_ = err
	}
}

// crash ends a replica that was cut off. Whoever comes next leads at once: that it
// would have to wait for the dead one's lease is TestLeaderDies.
func (p *process) crash() {
	s := p.server
	p.end()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: LeaseName}}
	s.must(client.IgnoreNotFound(s.Delete(s.t.Context(), lease)))
}

// isWrite tells requests that change an object of a resource.
func isWrite(method, resource string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == method && strings.Contains(r.URL.Path, "/"+resource+"/")
	}
}

var withoutFigures = regexp.MustCompile(`[0-9,]`)
