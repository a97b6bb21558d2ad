// SPDX-License-Identifier: Apache-2.0

//go:build upgrade

package upgrade

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// patience bounds every wait. Nothing passes or fails by how long it takes.
const patience = 3 * time.Minute

// await polls until check is satisfied; its last words are the failure's text.
func await(t *testing.T, what string, check func() (bool, string)) {
	t.Helper()
	system.Await(t, patience, what, func(context.Context) (bool, string) { return check() })
}

// create makes the pod, and says more of it if the test fails.
func create(t *testing.T, l *load) *load {
	t.Helper()
	wanted := l.Pod
	// Once more where the webhook was not heard in its five seconds.
	await(t, "pod "+l.Name+" to be made", func() (bool, string) {
		made, err := sys.Kube.CoreV1().Pods(namespace).Create(t.Context(), wanted, metav1.CreateOptions{})
		if err != nil && !strings.Contains(err.Error(), "failed calling webhook") {
			t.Fatal(err)
		}
		if err == nil {
			l.Pod = made
		}
		return err == nil, fmt.Sprint(err)
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pod %s: %s", l.Name, strings.Join(sys.Events(context.Background(), namespace, "involvedObject.uid="+string(l.UID)), "\n  "))
		}
	})
	return l
}

func start(t *testing.T, l *load) *load {
	t.Helper()
	return awaitStarted(t, create(t, l))
}

// awaitStarted waits until its program has its memory and, if it is busy, works.
func awaitStarted(t *testing.T, l *load) *load {
	t.Helper()
	await(t, "pod "+l.Name+" to run", func() (bool, string) {
		text, err := sys.Logs(t.Context(), namespace, l.Name, "main")
		if err != nil {
			return false, err.Error()
		}
		l.Pod = get(t, l)
		return strings.Contains(text, "allocated mib=100") && l.Status.ContainerStatuses[0].Ready, text
	})
	awaitWork(t, l)
	return l
}

func get(t *testing.T, l *load) *corev1.Pod {
	t.Helper()
	now := must.Get(sys.Kube.CoreV1().Pods(namespace).Get(t.Context(), l.Name, metav1.GetOptions{}))(t)
	return now
}

// remove deletes the pod, and awaits that no ledger has a slice of it.
func remove(t *testing.T, l *load) {
	t.Helper()
	if err := sys.Kube.CoreV1().Pods(namespace).Delete(t.Context(), l.Name, metav1.DeleteOptions{}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	await(t, "Invariant 6: pod "+l.Name+" and its slices to go", func() (bool, string) {
		_, err := sys.Kube.CoreV1().Pods(namespace).Get(t.Context(), l.Name, metav1.GetOptions{})
		granted, _ := ledgered(t, l)
		return apierrors.IsNotFound(err) && len(granted) == 0, fmt.Sprint(err, granted)
	})
}

func ledgers(t *testing.T) []v1alpha1.SliceLedger {
	t.Helper()
	list := &v1alpha1.SliceLedgerList{}
	must.Do(t, sys.Client.List(t.Context(), list))
	return list.Items
}

// ledgered are the slices that ledgers grant the pod, and the ones that nodes say it has.
func ledgered(t *testing.T, l *load) (granted []v1alpha1.Slice, attached []v1alpha1.SliceStatus) {
	t.Helper()
	for _, ledger := range ledgers(t) {
		for _, d := range ledger.Spec.Devices {
			for _, s := range d.Slices {
				if s.Pod == l.UID {
					granted = append(granted, s)
				}
			}
		}
		for _, s := range ledger.Status.Slices {
			if s.Pod == l.UID {
				attached = append(attached, s)
			}
		}
	}
	return granted, attached
}

// seen is what must not change of a running pod.
type seen struct {
	container corev1.ContainerStatus
	ready     metav1.Time // since when
	granted   []v1alpha1.Slice
	attached  []v1alpha1.SliceStatus
}

func look(t *testing.T, l *load) seen {
	t.Helper()
	s := seen{container: get(t, l).Status.ContainerStatuses[0]}
	for _, c := range get(t, l).Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			s.ready = c.LastTransitionTime
		}
	}
	s.granted, s.attached = ledgered(t, l)
	for i := range s.attached {
		s.attached[i].Note = "" // checkTurns
	}
	return s
}

// remember looks at running pods once the ledger shows them.
func remember(t *testing.T, all ...*load) {
	t.Helper()
	for _, l := range all {
		await(t, "the ledger to have pod "+l.Name, func() (bool, string) {
			l.seen = look(t, l)
			return !l.seen.ready.IsZero() && len(l.seen.attached) == 1 && l.seen.attached[0].Memory != v1alpha1.GuaranteeNone, fmt.Sprintf("%+v", l.seen)
		})
	}
}

// check holds running pods against what was remembered: none has stopped, not even for a
// moment; each works, is held to its memory, and is in the ledger as it was.
func check(t *testing.T, all ...*load) {
	t.Helper()
	for _, l := range all {
		now := get(t, l).Status.ContainerStatuses[0]
		if !reflect.DeepEqual(now, l.seen.container) {
			t.Fatalf("Invariant 4: the container of %s did not go on: before %+v, now %+v", l.Name, l.seen.container, now)
		}
		await(t, "pod "+l.Name+" to be in the ledger as it was", func() (bool, string) {
			now := look(t, l)
			return reflect.DeepEqual(now, l.seen), fmt.Sprintf("%+v, before %+v", now, l.seen)
		})
		awaitWork(t, l)
		checkMemory(t, l)
	}
}

// checkMemory has new programs in the container: what is in the slice fits, and no more.
func checkMemory(t *testing.T, l *load) {
	t.Helper()
	const inside, ok, refused = 50, "alloc mib=50 ok=1", "CUDA_ERROR_OUT_OF_MEMORY"
	granted, _ := ledgered(t, l)
	if len(granted) != 1 {
		t.Fatalf("pod %s has slices %+v", l.Name, granted)
	}
	script := fmt.Sprintf("cudademo --alloc %d; cudademo --alloc %d || true", inside, granted[0].Mem)
	out, err := sys.Cluster.Exec(t.Context(), namespace, l.Name, "main", "/bin/sh", "-c", script+" 2>&1")
	if err != nil || !strings.Contains(out, ok) || !strings.Contains(out, refused) {
		t.Errorf("Invariant 2: memory in pod %s: %v, %s", l.Name, err, out)
	}
}

// checkWait has pods at the gate, without a node and without a slice, for a reason that
// they are told.
func checkWait(t *testing.T, all ...*load) {
	t.Helper()
	for _, l := range all {
		await(t, "pod "+l.Name+" to be told what it waits for", func() (bool, string) {
			events := strings.Join(sys.Events(t.Context(), namespace, "involvedObject.uid="+string(l.UID)), "\n")
			// The release before says it in other words.
			return strings.Contains(events, fmt.Sprintf("needs %d core", l.core)) || strings.Contains(events, fmt.Sprintf("needs %d %% compute", l.core)), events
		})
		now := get(t, l)
		granted, _ := ledgered(t, l)
		if len(now.Spec.SchedulingGates) != 1 || now.Spec.NodeName != "" || len(granted) != 0 || now.UID != l.UID {
			t.Fatalf("pod %s does not wait: gates %v, node %q, slices %v", l.Name, now.Spec.SchedulingGates, now.Spec.NodeName, granted)
		}
	}
}

// checkTurns looks at what nodes say of turns beside busy neighbours. It is for pods on a
// node whose agent has written the ledger since it came.
func checkTurns(t *testing.T, want bool, all ...*load) {
	t.Helper()
	for _, l := range all {
		_, attached := ledgered(t, l)
		if len(attached) != 1 || strings.Contains(attached[0].Note, "no turns") == want {
			t.Errorf("pod %s has %+v; turns wanted: %t", l.Name, attached, want)
		}
	}
}

// worked is the device time that a pod's processes have used, as the device itself counts
// it, and the device's clock.
func worked(t *testing.T, l *load) (used, now time.Duration) {
	t.Helper()
	state := must.Get(sys.Node(l.Spec.NodeName).GPU.Status())(t)
	_, id, _ := strings.Cut(l.Status.ContainerStatuses[0].ContainerID, "://")
	for _, c := range state.Clients {
		if id != "" && strings.Contains(c.Cgroup, id) {
			used += time.Duration(c.DoneNS)
		}
	}
	return used, time.Duration(state.NowNS)
}

// awaitWork waits until a busy pod has done more than it had.
func awaitWork(t *testing.T, l *load) {
	t.Helper()
	if !l.busy {
		return
	}
	before, _ := worked(t, l)
	await(t, "pod "+l.Name+" to go on with its work", func() (bool, string) {
		now, _ := worked(t, l)
		return now > before, fmt.Sprintf("%v, before %v", now, before)
	})
}

// awaitShares waits until pods that are busy on one device get their quotas of four seconds
// of its time.
func awaitShares(t *testing.T, all ...*load) {
	t.Helper()
	const window, tolerance = 4 * time.Second, 4
	await(t, "pods to get their quotas", func() (bool, string) {
		before, begun := make([]time.Duration, len(all)), make([]time.Duration, len(all))
		for i, l := range all {
			before[i], begun[i] = worked(t, l)
		}
		await(t, "the device's clock to go on", func() (bool, string) {
			_, now := worked(t, all[0])
			return now-begun[len(all)-1] >= window, now.String()
		})
		good, said := true, ""
		for i, l := range all {
			used, now := worked(t, l)
			got := 100 * float64(used-before[i]) / float64(now-begun[i])
			good = good && math.Abs(got-float64(l.core)) <= tolerance
			said += fmt.Sprintf("%s %.1f ", l.Name, got)
		}
		return good, said
	})
}

// awaitEmpty waits until no ledger has a slice.
func awaitEmpty(t *testing.T) {
	t.Helper()
	await(t, "the ledgers to be empty", func() (bool, string) {
		for _, l := range ledgers(t) {
			for _, d := range l.Spec.Devices {
				if len(d.Slices) > 0 {
					return false, fmt.Sprintf("%s %+v", l.Name, d)
				}
			}
			if len(l.Status.Slices) > 0 {
				return false, fmt.Sprintf("%s %+v", l.Name, l.Status.Slices)
			}
		}
		return true, ""
	})
}

// awaitNothingLeft waits until no pod has a folder or a mount on its node, nor a word in
// its ledger.
func awaitNothingLeft(t *testing.T) {
	t.Helper()
	await(t, "nothing of pods to be left on the nodes", func() (bool, string) {
		var left []string
		for _, l := range ledgers(t) {
			for _, uid := range l.Status.Released {
				left = append(left, "released "+string(uid))
			}
			n := sys.Node(l.Name)
			folders := must.Get(filepath.Glob(filepath.Join(n.Dir(), "vernier", "*-*-*-*-*")))(t)
			left = append(left, folders...)
			mounts := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.Containerd.ID().PID)))(t)
			for line := range strings.Lines(string(mounts)) {
				if strings.Contains(line, "vernier-counters") {
					left = append(left, line)
				}
			}
		}
		return len(left) == 0, strings.Join(left, "\n")
	})
}
