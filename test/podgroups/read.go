// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/podrequest"
)

// Read are PodGroups as the allocator reads them from an API server, which serves the native ones, and of
// others those that there are.
func Read(t *testing.T, groups ...*unstructured.Unstructured) *podgroup.Sizes {
	t.Helper()
	versions := map[string]string{string(podrequest.Native): "v1alpha2"}
	var objects []runtime.Object
	for _, g := range groups {
		api := g.GroupVersionKind()
		versions[api.Group], objects = api.Version, append(objects, g)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for group, version := range versions {
			switch path := "/apis/" + group; r.URL.Path {
			case path:
				_ = json.NewEncoder(w).Encode(metav1.APIGroup{PreferredVersion: metav1.GroupVersionForDiscovery{Version: version}})
				return
			case path + "/" + version:
				_ = json.NewEncoder(w).Encode(metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "podgroups"}}})
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	lists := map[schema.GroupVersionResource]string{}
	for group, version := range versions {
		lists[schema.GroupVersionResource{Group: group, Version: version, Resource: "podgroups"}] = "PodGroupList"
	}
	sizes := &podgroup.Sizes{}
	w := &served.Watcher{
		Clock: clock.RealClock{}, Log: logr.Discard(), Resources: sizes.Resources(func(podrequest.Group) {}, func(podrequest.GroupAPI) {}),
		Discovery: discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL}).RESTClient(),
		Dynamic:   dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...),
	}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	running.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	sizes.Await(t.Context(), time.Minute)
	return sizes
}
