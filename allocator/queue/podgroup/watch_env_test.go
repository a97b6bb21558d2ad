// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package podgroup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/podgroups"
)

// watched is a watcher with the rights of the allocator on a real API server.
type watched struct {
	*testing.T
	client.Client
	sizes *podgroup.Sizes
	clock *testclock.FakeClock
}

func watch(t *testing.T, flags map[string]string) *watched {
	t.Helper()
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml"}, Flags: flags})
	w := &watched{T: t, Client: apiserver.Client(t, cfg), sizes: &podgroup.Sizes{}, clock: testclock.NewFakeClock(time.Now())}
	asAllocator := apiserver.AsServiceAccount(cfg, v1alpha1.AllocatorServiceAccount)
	kube, err1 := kubernetes.NewForConfig(asAllocator)
	dyn, err2 := dynamic.NewForConfig(asAllocator)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&served.Watcher{Discovery: kube.Discovery().RESTClient(), Dynamic: dyn, Clock: w.clock, Log: logr.Discard(),
			Resources: w.sizes.Resources(func(podrequest.Group) {}, func(podrequest.GroupAPI) {})}).Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return w
}

func (w *watched) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// await waits until the group says what is wanted: a number, or a part of an error.
// Meanwhile the API server is asked again and again what it serves.
func (w *watched) await(api podrequest.GroupAPI, name, want string) {
	w.Helper()
	var got string
	err := wait.PollUntilContextTimeout(w.Context(), 50*time.Millisecond, 90*time.Second, true, func(context.Context) (bool, error) {
		w.clock.Step(served.Rediscover)
		n, err := w.sizes.Min(podrequest.Group{API: api, Namespace: "default", Name: name}, nil)
		got = fmt.Sprint(n, " ", err)
		return strings.Contains(got, want), nil
	})
	if err != nil {
		w.Fatalf("group %s of %s: %s, want %s", name, api, got, want)
	}
}

func (w *watched) update(obj *unstructured.Unstructured, edit func(map[string]any)) {
	w.Helper()
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(obj), obj))
	edit(obj.Object["spec"].(map[string]any))
	w.must(w.Update(w.Context(), obj))
}

// A CRD may come after the allocator, and go.
func TestCoschedulingComesAndGoes(t *testing.T) {
	w := watch(t, nil)
	w.await(podrequest.Native, "g", "no PodGroups of scheduling.k8s.io")
	w.await(podrequest.Coscheduling, "g", "no PodGroups of scheduling.x-k8s.io")
	crd := podgroups.CRD()
	w.must(w.Create(t.Context(), crd))
	w.await(podrequest.Coscheduling, "g", "does not exist: create it")
	g := podgroups.Coscheduling("default", "g", 3)
	w.must(w.Create(t.Context(), g))
	w.await(podrequest.Coscheduling, "g", "3 <nil>")
	w.update(g, func(spec map[string]any) { spec["minMember"] = int64(0) })
	w.await(podrequest.Coscheduling, "g", "spec.minMember is 0")
	w.must(w.Delete(t.Context(), g))
	w.await(podrequest.Coscheduling, "g", "does not exist: create it")
	w.must(w.Delete(t.Context(), crd))
	w.await(podrequest.Coscheduling, "g", "no PodGroups of scheduling.x-k8s.io")
}

// Volcano's controllers and ours start in any order. Without its CRD nobody waits for a group of it.
func TestVolcanoComesAndGoes(t *testing.T) {
	w := watch(t, nil)
	w.await(podrequest.Volcano, "g", "1 <nil>")
	crd := podgroups.VolcanoCRD()
	w.must(w.Create(t.Context(), crd))
	w.await(podrequest.Volcano, "g", "does not exist: create it")
	g := podgroups.Volcano("default", "g", 3)
	w.must(w.Create(t.Context(), g))
	w.await(podrequest.Volcano, "g", "3 <nil>")
	w.await(podrequest.Coscheduling, "g", "no PodGroups of scheduling.x-k8s.io")
	w.update(g, func(spec map[string]any) { delete(spec, "minMember") })
	w.await(podrequest.Volcano, "g", "1 <nil>")
	w.update(g, func(spec map[string]any) { spec["minMember"] = int64(2) })
	w.await(podrequest.Volcano, "g", "2 <nil>")
	w.must(w.Delete(t.Context(), g))
	w.await(podrequest.Volcano, "g", "does not exist: create it")
	w.must(w.Delete(t.Context(), crd))
	w.await(podrequest.Volcano, "g", "1 <nil>")
}

// The native API, where the server is told to serve it.
func TestNative(t *testing.T) {
	w := watch(t, podgroups.ServeNative)
	w.await(podrequest.Native, "g", "does not exist: create it")
	w.must(w.Create(t.Context(), podgroups.Native("default", "g", 4)))
	w.must(w.Create(t.Context(), podgroups.Native("default", "basic", 0)))
	w.must(w.Create(t.Context(), podgroups.Within(podgroups.Native("default", "racks", 2), "example.com/rack")))
	w.await(podrequest.Native, "g", "4 <nil>")
	w.await(podrequest.Native, "basic", "1 <nil>")
	w.await(podrequest.Native, "racks", "2 <nil>")
	for name, want := range map[string]string{"g": "[]", "racks": "[example.com/rack]"} {
		if got := fmt.Sprint(w.sizes.Topology(podrequest.Group{API: podrequest.Native, Namespace: "default", Name: name})); got != want {
			t.Errorf("group %s: topology %s, want %s", name, got, want)
		}
	}
}
