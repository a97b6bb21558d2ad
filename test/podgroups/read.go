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

// Read are the native PodGroups as the allocator reads them from an API server.
func Read(t *testing.T, groups ...*unstructured.Unstructured) *podgroup.Sizes {
	t.Helper()
	api := schema.GroupVersion{Group: string(podrequest.Native), Version: "v1"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch path := "/apis/" + api.Group; r.URL.Path {
		case path:
			_ = json.NewEncoder(w).Encode(metav1.APIGroup{PreferredVersion: metav1.GroupVersionForDiscovery{Version: api.Version}})
		case path + "/" + api.Version:
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "podgroups"}}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	var objects []runtime.Object
	for _, g := range groups {
		g.SetGroupVersionKind(api.WithKind("PodGroup"))
		objects = append(objects, g)
	}
	sizes := &podgroup.Sizes{}
	w := &served.Watcher{
		Clock: clock.RealClock{}, Log: logr.Discard(), Resources: sizes.Resources(func(podrequest.Group) {}, func(podrequest.GroupAPI) {}),
		Discovery: discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL}).RESTClient(),
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{api.WithResource("podgroups"): "PodGroupList"}, objects...),
	}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	running.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	sizes.Await(t.Context(), time.Minute)
	return sizes
}
