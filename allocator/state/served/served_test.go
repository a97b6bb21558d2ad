// SPDX-License-Identifier: Apache-2.0

package served

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// What is known of a resource is told as the versions come and go that it is served in. One that is
// read in one version only is absent in others.
func TestStatesAreTold(t *testing.T) {
	const group = "example.com"
	var version atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		version := version.Load().(string)
		switch path := "/apis/" + group; {
		case version != "" && r.URL.Path == path:
			_ = json.NewEncoder(w).Encode(metav1.APIGroup{PreferredVersion: metav1.GroupVersionForDiscovery{Version: version}})
		case version != "" && r.URL.Path == path+"/"+version:
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "things"}}})
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL}
	w := &Watcher{Discovery: discovery.NewDiscoveryClientForConfigOrDie(cfg).RESTClient(), Dynamic: dynamic.NewForConfigOrDie(cfg)}
	for _, tt := range []struct{ only, want string }{{"", "[1] [0] [] [0] [1]"}, {"v2", "[1] [1] [1] [0] [1]"}} {
		var mu sync.Mutex
		var told []State
		r := Resource{Group: group, Name: "things", Version: tt.only, State: func(now State) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, now)
		}}
		f, got := &follow{}, ""
		for _, now := range []string{"", "v1", "v1", "v2", ""} {
			version.Store(now)
			if err := w.discover(t.Context(), r, f); err != nil {
				t.Fatal(err)
			}
			mu.Lock() // the watch itself finds nothing to list here
			got, told = fmt.Sprint(got, told, " "), nil
			mu.Unlock()
		}
		f.end()
		if got != tt.want+" " {
			t.Errorf("version %q: told %s, want %s", tt.only, got, tt.want)
		}
	}
}
