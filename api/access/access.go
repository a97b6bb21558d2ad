// SPDX-License-Identifier: Apache-2.0

// Package access owns who may read what the parts of Vernier serve over HTTP. A
// bearer of a token may read what the API server allows, asked by TokenReview and
// SubjectAccessReview.
//
// It decides nothing itself and keeps nobody's token, only digests of those that
// were accepted before.
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"vernier.dev/vernier/api/v1alpha1"
)

// ErrAway is wrapped when nobody can tell now whether a bearer may read, and
// ErrForbidden when the bearer is known and may not. Any other error is of a token
// that the API server does not know.
var (
	ErrAway      = errors.New("the API server does not say who may read this; try again")
	ErrForbidden = errors.New("not allowed")
)

// timeout bounds both questions about a token.
const timeout = 10 * time.Second

// Review asks the API server who bears a token, and whether he may do one thing.
type Review struct {
	tokens authentication.TokenReviewsGetter
	rights authorization.SubjectAccessReviewsGetter
	// thing is what the bearer must be allowed, without the bearer. remedy is what
	// helps one who is not.
	thing  authorizationv1.SubjectAccessReviewSpec
	remedy string

	budget *budget
}

func newReview(tokens authentication.TokenReviewsGetter, rights authorization.SubjectAccessReviewsGetter,
	c clock.PassiveClock, thing authorizationv1.SubjectAccessReviewSpec, remedy string) *Review {
	return &Review{
		tokens: tokens, rights: rights, thing: thing, remedy: remedy, budget: newBudget(c),
	}
}

// Ledgers lets those read who may list ledgers. The clients' rights must include to
// create tokenreviews and subjectaccessreviews.
func Ledgers(tokens authentication.TokenReviewsGetter, rights authorization.SubjectAccessReviewsGetter) *Review {
	return newReview(tokens, rights, clock.RealClock{}, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: v1alpha1.Group, Resource: "sliceledgers", Verb: "list"},
	}, "may not list sliceledgers."+v1alpha1.Group+"; bind the cluster role vernier-viewer to it")
}

// Check returns nil if the token's bearer may. remote is the connection's peer, as host:port.
func (r *Review) Check(ctx context.Context, remote, token string) error {
	if token == "" {
		return errors.New("no token; make one with kubectl create token")
	}
	key, from := sha256.Sum256([]byte(token)), address(remote)
	if good, err := r.budget.take(key, from); good || err != nil {
		return err
	}
	err := r.ask(ctx, token)
	switch {
	case err == nil:
		r.budget.accept(key, from)
	case !errors.Is(err, ErrAway):
		r.budget.refuse(key)
	}
	return err
}

// ask has the API server judge the token's bearer.
func (r *Review) ask(ctx context.Context, token string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	who, err := r.tokens.TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	if !who.Status.Authenticated {
		return errors.New("the API server does not know this token, or it has expired; make one with kubectl create token")
	}
	return r.may(ctx, &who.Status.User)
}

func (r *Review) may(ctx context.Context, user *authenticationv1.UserInfo) error {
	spec := r.thing
	spec.User, spec.Groups, spec.UID, spec.Extra = user.Username, user.Groups, user.UID, map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	answer, err := r.rights.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	if !answer.Status.Allowed {
		return fmt.Errorf("%w: %s %s", ErrForbidden, user.Username, r.remedy)
	}
	return nil
}

// Metrics has a manager serve its metrics at host:port, or not at all for "0". It
// serves TLS with a self-signed certificate, to users who may get the API
// server's own /metrics. That is what a Prometheus in the cluster may do already.
//
// controller-runtime has a filter that asks the same (metrics/filters). It brings
// the API server's whole library along, which makes the node agent and the webhook
// 20 MB larger each.
func Metrics(address string) server.Options {
	return server.Options{BindAddress: address, SecureServing: true, FilterProvider: filter}
}

func filter(config *rest.Config, c *http.Client) (server.Filter, error) {
	config = unthrottled(config)
	tokens, err1 := authentication.NewForConfigAndClient(config, c)
	rights, err2 := authorization.NewForConfigAndClient(config, c)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return metricsReview(tokens, rights, clock.RealClock{}).filter, nil
}

// unthrottled returns the configuration without client-go's own rate limit. Review has its
// own, and questions about unknown tokens must not queue before those about accepted ones.
func unthrottled(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	return config
}

// Use lets those read what containers use who may get the API server's /metrics, as the
// metrics that say it do.
func Use(tokens authentication.TokenReviewsGetter, rights authorization.SubjectAccessReviewsGetter) *Review {
	return metricsReview(tokens, rights, clock.RealClock{})
}

func metricsReview(tokens authentication.TokenReviewsGetter, rights authorization.SubjectAccessReviewsGetter, c clock.PassiveClock) *Review {
	return newReview(tokens, rights, c, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	}, "may not get /metrics; bind the cluster role vernier-metrics-reader to it")
}

// filter lets requests with a good token through to the handler.
func (r *Review) filter(log logr.Logger, handler http.Handler) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch err := r.Check(req.Context(), req.RemoteAddr, Bearer(req)); {
		case err == nil:
			handler.ServeHTTP(w, req)
		case errors.Is(err, errBusy): // not logged: a flood would fill the log
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case errors.Is(err, ErrAway):
			log.Error(err, "Cannot authenticate metrics request")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case errors.Is(err, ErrForbidden):
			http.Error(w, err.Error(), http.StatusForbidden)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		}
	}), nil
}

// Bearer is the token that a program sends with a request, or empty.
func Bearer(r *http.Request) string {
	if token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); bearer {
		return token
	}
	return ""
}
