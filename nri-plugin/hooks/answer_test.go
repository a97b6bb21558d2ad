// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/nritest"
)

// slowly has the driver answer to nothing but the first look at a device, or not to that
// either, until the returned function is called. The agent gives it little time.
func slowly(t *testing.T, n *testNode, alsoAtFirst bool) (answers func()) {
	t.Helper()
	slow := make(chan struct{})
	n.gpus.mu.Lock()
	n.gpus.slow = slow
	n.gpus.mu.Unlock()
	if alsoAtFirst {
		n.gpus.onCheck = func() { <-slow }
	}
	n.AnswerWithin = 50 * time.Millisecond
	over := false
	answers = func() {
		if !over {
			over = true
			n.AnswerWithin = 0
			close(slow)
		}
	}
	t.Cleanup(answers)
	return answers
}

// stillThere creates and starts a container: the runtime has not dropped us.
func stillThere(t *testing.T, n *testNode, r *nritest.Runtime) {
	t.Helper()
	next := podOf("next", share30)
	n.ledger.grant(gpu1, slice30(next))
	c := containerOf(next, "main")
	if _, err := r.Create(next, c); err != nil {
		t.Errorf("the next container: %v", err)
	}
	if err := r.StartContainer(next, c); err != nil {
		t.Errorf("the start of the next container: %v", err)
	}
}

// Invariant 2: a container whose limits the driver takes too long to set is refused
// before the runtime stops waiting, with the reason; and the agent stays.
func TestStartBesideASlowDriver(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod, c := created(t, n, r)
	answers := slowly(t, n, false)
	refusedFor(t, r.StartContainer(pod, c), "limits cannot be set", "too slow to answer", "nvidia-smi", "restartPolicy Never")
	if got := n.Table.Slices(); len(got) != 0 {
		t.Errorf("it is told that it runs: %+v", got)
	}
	r.StopContainer(t, pod, c)
	answers()
	stillThere(t, n, r)
	if got := n.Table.Slices(); len(got) != 1 || got[0].Pod != "uid-next" {
		t.Errorf("slices %+v, want those of the next container", got)
	}
}

// A driver that is slow already at the creation fails that, which the kubelet tries again
// for every pod. Nothing is in use after it.
func TestCreateBesideASlowDriver(t *testing.T) {
	n, r, pod := granted(t)
	answers := slowly(t, n, true)
	c := containerOf(pod, "main")
	_, err := r.Create(pod, c)
	refusedFor(t, err, "too slow to answer", "tried again", "nvidia-smi")
	if n.Table.Holds(uid(pod)) {
		t.Error("it is entered as one that uses its slices")
	}
	answers()
	if _, err := r.Create(pod, c); err != nil {
		t.Errorf("tried again: %v", err)
	}
	stillThere(t, n, r)
}

// An agent that comes back beside a slow driver is connected all the same, and tells what
// holds the containers that run once the driver does.
func TestSynchronizeBesideASlowDriver(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := running(containerOf(pod, "main"), v1alpha1.EnvSlice+"="+pod.Uid)
	n.gpus.limits[gpu0+"/cgroup/"+c.Id] = 20480
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{c})
	answers := slowly(t, n, false)
	connect(t, r, n.Plugin)
	if !n.Table.Holds(uid(pod)) || len(n.Table.Slices()) != 0 {
		t.Errorf("entered: %v, slices %+v", n.Table.Holds(uid(pod)), n.Table.Slices())
	}
	answers()
	n.Observe()
	if got := n.Table.Slices(); len(got) != 1 || got[0].Memory != v1alpha1.GuaranteeDriver {
		t.Errorf("slices %+v", got)
	}
}

// A runtime that waits for minutes has no agent wait so long for a driver that hangs that it
// gives up its own connection.
func TestSynchronizeWhereTheRuntimeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := podOf("a", share30)
		n.ledger.grant(gpu0, slice30(pod))
		c := running(containerOf(pod, "main"), v1alpha1.EnvSlice+"="+pod.Uid)
		n.gpus.slow = make(chan struct{})
		defer close(n.gpus.slow)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		asked := time.Now()
		if _, err := n.Synchronize(ctx, []*api.PodSandbox{pod}, []*api.Container{c}); err != nil {
			t.Error(err)
		}
		if took := time.Since(asked); took == 0 || took >= registerTimeout {
			t.Errorf("waited %s for the driver; the connection is given up after %s", took, registerTimeout)
		}
		if !n.Table.Holds(uid(pod)) {
			t.Error("it is not entered")
		}
	})
}

// An answer takes three quarters of the time that the runtime waits, which is a setting of
// the runtime's.
func TestAnswersInTime(t *testing.T) {
	for _, waits := range []time.Duration{0, time.Second, 20 * time.Second} {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if waits > 0 {
			ctx, cancel = context.WithTimeout(ctx, waits)
		} else {
			waits = runtimeWaits
		}
		asked := time.Now()
		answer, done := (&Plugin{}).answering(ctx)
		end, bounded := answer.Deadline()
		if !bounded || end.Before(asked.Add(waits/2)) || end.After(time.Now().Add(waits/4*3)) {
			t.Errorf("where the runtime waits %s: until %s after it asks, bounded %v", waits, end.Sub(asked), bounded)
		}
		done()
		cancel()
	}
}

// How long the runtime waits comes with its request: a driver that needs longer than the
// usual time for an answer is waited for where the runtime waits.
func TestCreateWhereTheRuntimeWaits(t *testing.T) {
	n, r, pod := granted(t)
	n.gpus.onCheck = func() { <-time.After(runtimeWaits) }
	if _, err := r.Create(pod, containerOf(pod, "main")); err != nil {
		t.Error(err)
	}
}
