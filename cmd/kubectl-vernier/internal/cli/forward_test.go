// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// One token serves for all agents and is renewed before it expires; where none was made, the next who asks tries again.
func TestTokenIsRenewed(t *testing.T) {
	now := time.Now()
	made, away := 0, true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away || r.URL.Path != "/api/v1/namespaces/vernier-system/serviceaccounts/vernier-metrics/token" {
			http.Error(w, "away", http.StatusInternalServerError)
			return
		}
		made++
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(authenticationv1.TokenRequest{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
			Status:   authenticationv1.TokenRequestStatus{Token: fmt.Sprint(made)},
		})
	}))
	defer server.Close()
	f := &forwarded{connect: func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil }, now: func() time.Time { return now }}
	if _, err := f.start(t.Context()); err == nil {
		t.Error("a token although the API server is away")
	}
	away = false
	for _, step := range []struct {
		later time.Duration
		token string
	}{{0, "1"}, {29 * time.Minute, "1"}, {time.Minute, "2"}, {0, "2"}} {
		now = now.Add(step.later)
		if s, err := f.start(t.Context()); err != nil || s.token != step.token {
			t.Errorf("%s later: token %q, %v; want %q", step.later, s.token, err, step.token)
		} else if s.made != s.made.Round(0) {
			t.Error("its age is told by a clock that stands still while the machine sleeps")
		}
	}
}
