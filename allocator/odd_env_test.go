// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// resize changes what a pod's first container asks for, in place.
func (s *server) resize(name string, what corev1.ResourceName, amount string) error {
	s.t.Helper()
	p := s.pod(name)
	r := &p.Spec.Containers[0].Resources
	r.Requests[what] = resource.MustParse(amount)
	if _, limited := r.Limits[what]; limited {
		r.Limits[what] = resource.MustParse(amount)
	}
	return s.SubResource("resize").Update(s.t.Context(), p)
}

// A pod's share cannot be resized in place; its CPU can, at the gate too, and counts as it is
// then. One that grows past its node on the way there is refused and healed like any other.
func TestResize(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	s.addPlain("plain", "gpu-1", "40")
	s.run()
	s.addPod("waits", objects.Share(10, 100), objects.CPU("30"))
	s.awaitEvent("waits", notify.ReasonWaiting, "1 Insufficient cpu")
	for _, what := range []corev1.ResourceName{v1alpha1.ResourceCore, v1alpha1.ResourceMemMiB} {
		if err := s.resize("waits", what, "20"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "only cpu and memory resources are mutable") {
			t.Errorf("resizing %s: %v, want it refused with the reason", what, err)
		}
	}
	if err := s.resize("waits", corev1.ResourceCPU, "20"); err != nil {
		t.Fatal(err)
	}
	s.awaitPlaced("waits")
	// Who is on the way counts with what it asks for now.
	if err := s.resize("waits", corev1.ResourceCPU, "1"); err != nil {
		t.Fatal(err)
	}
	s.addPod("next", objects.Share(10, 100), objects.CPU("23"))
	s.awaitPlaced("next")
}

// watches ends a replica's watches, and answers the next ones as an API server does that
// does not have the changes any more since when they ask.
type watches struct {
	mu      sync.Mutex
	streams map[*stream]bool
	// ends is how often all were ended.
	ends int
	// resume is closed while they are served. late are those that were ended and not asked
	// for since, gone are those that were told that they ask for too much.
	resume     chan struct{}
	late, gone map[string]bool
}

type stream struct {
	io.ReadCloser
	kind  string
	ended chan struct{}
	once  sync.Once
}

func (s *stream) end() { s.once.Do(func() { close(s.ended); _ = s.ReadCloser.Close() }) }

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	select {
	case <-s.ended:
		return 0, io.EOF
	default:
		return n, err
	}
}

// roundTrip is the network between a replica and the API server.
func (w *watches) roundTrip(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	query := r.URL.Query()
	if !query.Has("watch") {
		return next.RoundTrip(r)
	}
	w.mu.Lock()
	before := w.ends
	w.mu.Unlock()
	if response, err := w.answer(r, query.Has("sendInitialEvents")); response != nil || err != nil {
		return response, err
	}
	response, err := next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	s := &stream{ReadCloser: response.Body, kind: r.URL.Path, ended: make(chan struct{})}
	response.Body = s
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams[s] = true
	if w.ends != before { // all were ended while it was on its way
		w.endOne(s)
	}
	return response, nil
}

// answer is the one without the API server, if any. A list that is read as a watch is none
// of those that ask for changes since.
func (w *watches) answer(r *http.Request, lists bool) (*http.Response, error) {
	select {
	case <-w.resumed():
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.late[r.URL.Path] || lists {
		return nil, nil
	}
	delete(w.late, r.URL.Path)
	w.gone[r.URL.Path] = true
	const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}`
	return &http.Response{StatusCode: http.StatusGone, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(expired)), ContentLength: int64(len(expired))}, nil
}

// resumed is closed unless the watches were ended and are not served again yet.
func (w *watches) resumed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resume
}

func (w *watches) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resume = make(chan struct{})
	w.ends++
	for s := range w.streams {
		w.endOne(s)
	}
}

// endOne ends a watch. The caller holds mu.
func (w *watches) endOne(s *stream) {
	delete(w.streams, s)
	w.late[s.kind] = true
	s.end()
}

func (w *watches) expired(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone[kind]
}

func (w *watches) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.resume)
}

// Invariants 1 and 6: a leader that is told of nothing, and then learns that what it missed
// is not kept any more (410 Gone), lists all anew, and neither double-books nor leaks.
func TestMissedForGood(t *testing.T) {
	s := start(t)
	s.watches = &watches{streams: map[*stream]bool{}, late: map[string]bool{}, gone: map[string]bool{}, resume: make(chan struct{})}
	s.watches.again()
	s.addNode("gpu-1")
	s.addNode("gpu-2")
	p := s.run()
	gone := map[string][]types.UID{}
	for _, name := range []string{"unbound", "bound"} {
		p := s.addPod(name, objects.Share(60, 600))
		node := s.awaitPlaced(name).Node
		gone[node] = append(gone[node], p.UID)
	}
	bound := s.pod("bound")
	s.must(s.SubResource("binding").Create(t.Context(), bound, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: podstate.TargetNode(bound)}}))

	s.watches.end()
	for _, name := range []string{"unbound", "bound"} {
		s.must(s.Delete(t.Context(), s.pod(name), client.GracePeriodSeconds(0)))
	}
	// One of them comes again under its name. Two devices are free, for three pods.
	names := []string{"unbound", "second", "third"}
	for _, name := range names {
		s.addPod(name, objects.Share(60, 600))
	}
	s.watches.again()
	letGo := func() (n int) {
		for _, name := range names {
			if !podstate.Gated(s.pod(name)) {
				n++
			}
		}
		return n
	}
	s.await("two of three to be placed", func(context.Context) (bool, error) { return letGo() == 2, nil })
	for _, name := range names {
		if podstate.Gated(s.pod(name)) {
			s.awaitEvent(name, notify.ReasonWaiting, "needs 60 % compute and 600 MiB on one GPU")
		}
	}
	// Those of which something was seen before go on from there.
	for _, kind := range []string{"/api/v1/pods", "/apis/vernier.dev/v1alpha1/sliceledgers"} {
		s.await("the watch of "+kind+" to ask for changes that are not kept any more", func(context.Context) (bool, error) {
			return s.watches.expired(kind) || p.again.Load() > 0, nil
		})
	}
	for node, pods := range gone {
		s.release(node, pods...)
	}
	for _, name := range names {
		s.awaitPlaced(name)
	}
	for _, node := range []string{"gpu-1", "gpu-2"} {
		for uid := range grants.Pods(s.ledger(node)) {
			if slices.Contains(slices.Concat(gone["gpu-1"], gone["gpu-2"]), uid) {
				t.Errorf("Invariant 6: %s holds slices of a pod that is gone", node)
			}
		}
	}
}
