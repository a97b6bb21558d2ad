// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// yard is a cluster in which devices are taken out of service. Every wait lets its
// node agent and allocator give back the slices of pods that are gone.
type yard struct {
	t   *testing.T
	api client.WithWatch
	// budget is how many evictions a PodDisruptionBudget refuses first.
	budget, evictions int
	// grace is the last grace period that an eviction had.
	grace *int64
	// held keeps slices from being given back.
	held bool
	now  time.Time
}

func newYard(t *testing.T, objects ...client.Object) *yard {
	y := &yard{t: t, now: now}
	y.api = interceptor.NewClient(fakeClient(t, objects...), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if review, asks := o.(*authenticationv1.SelfSubjectReview); asks {
				review.Status.UserInfo.Username = "ann"
				return nil
			}
			return c.Create(ctx, o, options...)
		},
	})
	return y
}

// clientset is the API server as kubectl's drain sees it, over the same pods.
func (y *yard) clientset() (kubernetes.Interface, error) {
	api := kubefake.NewClientset()
	api.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods/eviction", Kind: "Eviction", Group: policyv1.GroupName, Version: "v1"}}}}
	api.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		eviction, is := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !is {
			return true, nil, errors.New("not an eviction")
		}
		y.evictions++
		y.grace = eviction.DeleteOptions.GracePeriodSeconds
		if y.evictions <= y.budget {
			return true, nil, apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		}
		if slices.Contains(eviction.DeleteOptions.DryRun, metav1.DryRunAll) {
			return true, nil, nil
		}
		return true, nil, y.api.Delete(y.t.Context(), &corev1.Pod{ObjectMeta: eviction.ObjectMeta})
	})
	api.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := &corev1.Pod{}
		return true, pod, y.api.Get(y.t.Context(), client.ObjectKey{Namespace: action.GetNamespace(), Name: action.(clienttesting.GetAction).GetName()}, pod)
	})
	return api, nil
}

// after passes the time and has the slices of pods that are gone given back.
func (y *yard) after(d time.Duration) <-chan time.Time {
	passed := make(chan time.Time, 1)
	if d > time.Minute { // the timeout of the whole
		return passed
	}
	y.now = y.now.Add(d)
	l := y.ledger()
	for i := range l.Spec.Devices {
		device := &l.Spec.Devices[i]
		device.Slices = slices.DeleteFunc(device.Slices, func(s v1alpha1.Slice) bool {
			namespace, name, _ := strings.Cut(s.Owner, "/")
			err := y.api.Get(y.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &corev1.Pod{})
			return apierrors.IsNotFound(err) && !y.held
		})
	}
	must.Do(y.t, y.api.Update(y.t.Context(), l))
	passed <- y.now
	return passed
}

func (y *yard) ledger() *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{}
	must.Do(y.t, y.api.Get(y.t.Context(), client.ObjectKey{Name: "gpu-1"}, l))
	return l
}

func (y *yard) run(args string, more ...string) (out, errOut string, err error) {
	y.t.Helper()
	var stdout, stderr bytes.Buffer
	c := &command{
		flags: genericclioptions.NewConfigFlags(true), connect: func() (client.Client, error) { return y.api, nil },
		clientset: y.clientset, evictAgain: time.Nanosecond,
		now: func() time.Time { return y.now }, after: y.after, out: &stdout, errOut: &stderr,
	}
	root := c.root()
	root.SetArgs(append(strings.Fields(args), more...))
	err = root.ExecuteContext(y.t.Context())
	return stdout.String(), stderr.String(), err
}

// runner is a pod of the fixture's device gpuA; a controller made it unless it is alone.
func runner(name string, alone bool, volumes ...corev1.Volume) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.Volumes = volumes
	if !alone {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: ptr.To(true)}}
	}
	return p
}

// A cordon is in the ledger with name and reason, by CAS and with nothing else
// changed, and uncordon takes out that one only.
func TestCordon(t *testing.T) {
	y := newYard(t, fixture()...)
	before := y.ledger()
	out, _, err := y.run("cordon gpu-1/0 --reason", "fans to be replaced")
	if err != nil || out != "gpu/gpu-1/0 ("+gpuA+") cordoned\n" {
		t.Fatalf("printed %q, %v", out, err)
	}
	if out, _, err := y.run("cordon gpu-1/" + gpuC[:8]); err != nil || !strings.Contains(out, gpuC+") cordoned") {
		t.Errorf("by the beginning of the UUID of a device that is missing: %q, %v", out, err)
	}
	l := y.ledger()
	want := []v1alpha1.Cordon{
		{UUID: gpuA, By: "ann", Reason: "fans to be replaced", Since: metav1.NewTime(now)}, {UUID: gpuC, By: "ann", Since: metav1.NewTime(now)},
	}
	if !cmp.Equal(l.Spec.Cordons, want) {
		t.Errorf("cordons %+v, want %+v", l.Spec.Cordons, want)
	}
	l.Spec.Cordons, l.ResourceVersion = nil, before.ResourceVersion
	if diff := cmp.Diff(before, l); diff != "" {
		t.Errorf("something else has changed: %s", diff)
	}
	if out, _, err := y.run("cordon gpu-1/0"); err != nil || !strings.Contains(out, "already cordoned") || y.ledger().Spec.Cordons[0].Reason == "" {
		t.Errorf("again: %q, %v", out, err)
	}
	if out, _, _ := y.run("devices -o wide"); !strings.Contains(out, "ok,cordoned") || !strings.Contains(out, "cordoned by ann: fans to be replaced") {
		t.Errorf("not shown:\n%s", out)
	}
	if out, _, err := y.run("uncordon gpu-1/0 --dry-run"); err != nil || !strings.Contains(out, "uncordoned (dry run)") || len(y.ledger().Spec.Cordons) != 2 {
		t.Errorf("dry run: %q, %v", out, err)
	}
	if out, _, err := y.run("uncordon gpu-1/0"); err != nil || !strings.Contains(out, ") uncordoned") {
		t.Errorf("printed %q, %v", out, err)
	}
	if left := y.ledger().Spec.Cordons; len(left) != 1 || left[0].UUID != gpuC {
		t.Errorf("left %+v, want that of %s", left, gpuC)
	}
}

// Words that name no device are told what to write.
func TestTargets(t *testing.T) {
	y := newYard(t, fixture()...)
	for args, says := range map[string]string{
		"cordon":                       "NODE/GPU",
		"cordon gpu-1":                 "NODE/GPU",
		"drain /0":                     "NODE/GPU",
		"cordon none/0":                "no ledger",
		"cordon gpu-1/7":               "no GPU 7",
		"uncordon gpu-1/GPU-x":         `no GPU "GPU-x"`,
		"cordon gpu-1/GPU-":            "several GPUs",
		"cordon gpu-1/0 --dry-run=yes": `"none", "server", or "client"`,
	} {
		if out, _, err := y.run(args); err == nil || !strings.Contains(err.Error(), says) || out != "" {
			t.Errorf("%s: printed %q, %v; want %q", args, out, err, says)
		}
	}
	if n := len(y.ledger().Spec.Cordons); n != 0 {
		t.Errorf("%d cordons", n)
	}
}

// A drain ends when nothing of the device is granted; a PodDisruptionBudget makes it
// wait, and pods on other devices stay.
func TestDrain(t *testing.T) {
	y := newYard(t, append(fixture(), runner("train", false), runner("lost", false))...)
	y.budget = 2
	out, errOut, err := y.run("drain gpu-1/0 --grace-period 3 --timeout 1h")
	if err != nil || !strings.HasSuffix(out, "gpu/gpu-1/0 drained\n") || !strings.HasPrefix(out, "gpu/gpu-1/0 ("+gpuA+") cordoned\nevicting pod team-a/train\n") {
		t.Fatalf("printed %q, %v", out, err)
	}
	if y.evictions != 3 || strings.Count(errOut, "disruption budget") != 2 {
		t.Errorf("%d evictions, want 3; said %q", y.evictions, errOut)
	}
	if y.grace == nil || *y.grace != 3 {
		t.Errorf("grace period %v, want 3", y.grace)
	}
	l := y.ledger()
	if l.Spec.Cordon(gpuA) == nil || len(l.Spec.Devices[0].Slices) != 0 {
		t.Errorf("left %+v", l.Spec)
	}
	if err := y.api.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "lost"}, &corev1.Pod{}); err != nil {
		t.Errorf("a pod that is not on the device: %v", err)
	}
}

// What kubectl drain wants a flag for, drain of a device does, before anything is
// evicted.
func TestDrainAsksFirst(t *testing.T) {
	scratch := corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		args    string
		refuses string
		evicted int
	}{
		"nobody makes it again":         {runner("train", true), "", "--force to override): team-a/train", 0},
		"by force":                      {runner("train", true), "--force", "", 1},
		"local data":                    {runner("train", false, scratch), "", "--delete-emptydir-data to override): team-a/train", 0},
		"local data is to be lost":      {runner("train", false, scratch), "--delete-emptydir-data", "", 1},
		"only said":                     {runner("train", false), "--dry-run", "", 0},
		"only said, and refused":        {runner("train", true), "--dry-run", "--force", 0},
		"asked of the API server":       {runner("train", false), "--dry-run=server", "", 1},
		"another pod of the same name":  {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "new"}}, "--dry-run", "", 0},
		"it is over, by its controller": {over(runner("train", false)), "--dry-run=server", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, append(fixture(), c.pod)...)
			_, _, err := y.run("drain gpu-1/0 " + c.args)
			if c.refuses == "" && err != nil || c.refuses != "" && (err == nil || !strings.Contains(err.Error(), c.refuses)) {
				t.Errorf("%v, want %q", err, c.refuses)
			}
			if y.evictions != c.evicted {
				t.Errorf("%d evictions, want %d", y.evictions, c.evicted)
			}
			if cordoned := y.ledger().Spec.Cordon(gpuA) != nil; cordoned == strings.Contains(c.args, "dry-run") {
				// The fake server keeps nothing of a dry run either.
				t.Errorf("cordoned: %t", cordoned)
			}
		})
	}
}

// A dry run says what a drain would do, a pod that it would only wait for among it, and
// that nothing was done.
func TestDrainDryRun(t *testing.T) {
	for args, want := range map[string]struct{ out, err string }{
		"--dry-run --force": {out: "gpu/gpu-1/0 (" + gpuA + ") cordoned (dry run)\n" +
			"evicting pod team-a/train (dry run)\nwaiting for the slices of pod team-b/gone to be given back (dry run)\n" +
			"gpu/gpu-1/0 drained (dry run)\n"},
		"--dry-run=server --force": {err: "pod team-a/train: Cannot evict pod as it would violate the pod's disruption budget."},
		"--dry-run":                {err: "gpu/gpu-1/0 would be cordoned and nothing evicted: cannot evict pods that declare no controller"},
	} {
		y := newYard(t, append(fixture(), runner("train", true))...)
		y.budget = 1
		out, _, err := y.run("drain gpu-1/0 " + args)
		if want.out != "" && out != want.out || !strings.HasPrefix(errorText(err), want.err) || want.err == "" && err != nil {
			t.Errorf("%s: %v, printed\n%s", args, err, out)
		}
		if y.evictions > 1 || y.ledger().Spec.Cordon(gpuA) != nil {
			t.Errorf("%s: %d evictions, cordon %v", args, y.evictions, y.ledger().Spec.Cordon(gpuA))
		}
	}
}

func over(p *corev1.Pod) *corev1.Pod {
	p.Status.Phase = corev1.PodSucceeded
	return p
}

// A drain that takes too long says who is left, and leaves the cordon.
func TestDrainTimesOut(t *testing.T) {
	y := newYard(t, append(fixture(), runner("train", false))...)
	y.held = true
	rounds := 0
	late := make(chan time.Time, 1)
	c := &command{
		flags: genericclioptions.NewConfigFlags(true), connect: func() (client.Client, error) { return y.api, nil },
		clientset: y.clientset, now: func() time.Time { return y.now }, out: &bytes.Buffer{}, errOut: &bytes.Buffer{},
		after: func(d time.Duration) <-chan time.Time {
			if d == time.Hour {
				return late
			}
			if rounds++; rounds == 3 {
				late <- y.now
				return nil
			}
			return y.after(d)
		},
	}
	root := c.root()
	root.SetArgs(strings.Fields("drain gpu-1/0 --timeout 1h"))
	err := root.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "not empty after 1h0m0s: team-a/train") || y.evictions != 1 {
		t.Errorf("%v after %d evictions", err, y.evictions)
	}
}
