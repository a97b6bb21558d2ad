// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/test/must"
)

// kube is an API server that knows two tokens: ann, who may, and eve.
type kube struct {
	authentication.TokenReviewInterface
	authorization.SubjectAccessReviewInterface
	asked int
	away  error
	// thing is what was asked for last.
	thing authorizationv1.SubjectAccessReviewSpec
}

// peer is a connection's other end.
const peer = "192.0.2.1:5000"

type tokens struct{ *kube }

func (s tokens) TokenReviews() authentication.TokenReviewInterface { return s }

func (s tokens) Create(_ context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	s.asked++
	if r.Spec.Token == "ann" || r.Spec.Token == "eve" {
		r.Status.Authenticated = true
		r.Status.User = authenticationv1.UserInfo{Username: r.Spec.Token, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	}
	return r, s.away
}

type rights struct{ *kube }

func (s rights) SubjectAccessReviews() authorization.SubjectAccessReviewInterface { return s }

func (s rights) Create(_ context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s.thing = r.Spec
	r.Status.Allowed = r.Spec.User == "ann" && r.Spec.Groups[0] == "g" && r.Spec.Extra["k"][0] == "v"
	return r, nil
}

func get(t *testing.T, h http.Handler, header string) (int, string) {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if header != "" {
		req.Header.Set("Authorization", header)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func handler(t *testing.T, r *Review) http.Handler {
	t.Helper()
	h := must.Get(r.filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write([]byte("figures")); err != nil {
			t.Error(err)
		}
	})))(t)
	return h
}

// Nobody reads a figure whom the API server does not let read /metrics.
func TestFilter(t *testing.T) {
	s := &kube{}
	h := handler(t, metricsReview(tokens{s}, rights{s}, clocktesting.NewFakePassiveClock(time.Now())))
	for _, tt := range []struct {
		header string
		status int
		says   string
	}{
		{"", http.StatusUnauthorized, "no token"},
		{"Basic ann", http.StatusUnauthorized, "no token"},
		{"Bearer nonsense", http.StatusUnauthorized, "does not know this token"},
		{"Bearer eve", http.StatusForbidden, "eve may not get /metrics; bind the cluster role vernier-metrics-reader"},
		{"Bearer ann", http.StatusOK, "figures"},
	} {
		status, text := get(t, h, tt.header)
		if status != tt.status || !strings.Contains(text, tt.says) || (status == http.StatusOK) != (text == "figures") {
			t.Errorf("%q: %d: %s, want %d: %s", tt.header, status, text, tt.status, tt.says)
		}
	}
	if a := s.thing.NonResourceAttributes; s.thing.ResourceAttributes != nil || a == nil || a.Path != "/metrics" || a.Verb != "get" {
		t.Errorf("asked for %+v", s.thing)
	}
	s.away = errors.New("connection refused")
	if status, text := get(t, h, "Bearer other"); status != http.StatusServiceUnavailable || !strings.Contains(text, "connection refused") {
		t.Errorf("API server away: %d: %s", status, text)
	}
}

func TestLedgers(t *testing.T) {
	s := &kube{}
	r := Ledgers(tokens{s}, rights{s})
	must.Report(t, r.Check(t.Context(), peer, "ann"))
	if err := r.Check(t.Context(), peer, "eve"); !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), "bind the cluster role vernier-viewer") {
		t.Error(err)
	}
	if a := s.thing.ResourceAttributes; a == nil || a.Group != "vernier.dev" || a.Resource != "sliceledgers" || a.Verb != "list" {
		t.Errorf("asked for %+v", s.thing)
	}
}

// A good token is asked about once in a while, so that a scrape costs the API server
// little, and lost rights are noticed.
func TestRemembers(t *testing.T) {
	s, now := &kube{}, clocktesting.NewFakePassiveClock(time.Now())
	r := metricsReview(tokens{s}, rights{s}, now)
	check := func(token string, asked int, ok bool) {
		t.Helper()
		if err := r.Check(t.Context(), peer, token); (err == nil) != ok || s.asked != asked {
			t.Errorf("%s: %v after %d questions, want %d", token, err, s.asked, asked)
		}
	}
	check("ann", 1, true)
	check("ann", 1, true)
	check("eve", 2, false)
	check("eve", 3, false)
	s.away = errors.New("away")
	now.SetTime(now.Now().Add(goodFor - time.Second))
	check("ann", 3, true)
	now.SetTime(now.Now().Add(time.Second))
	check("ann", 4, false)
}
