// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
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
		if _, err := r.decide(t.Context(), "uid-a"); err != nil {
			t.Fatal(err)
		}
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
