// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

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
			log.Error(err, "cannot authenticate a metrics request")
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
