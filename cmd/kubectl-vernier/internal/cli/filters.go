// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
)

// filtersPatience bounds how long the scheduler's filters take to fill.
const filtersPatience = time.Minute

// readFilters fills the scheduler's filters from the API server. The error says what the
// user may not read.
func readFilters(ctx context.Context, cfg *rest.Config) (*feasible.Filters, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 50, 100
	// Informers try again for ever what is forbidden.
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &untilForbidden{next, cancel} })
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	late := time.AfterFunc(filtersPatience, func() { cancel(fmt.Errorf("nodes, pods, volumes and claims were not read within %s", filtersPatience)) })
	defer late.Stop()
	f, err := fillFilters(ctx, kube)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return f, err
}

// fillFilters fills them with what there is.
func fillFilters(ctx context.Context, kube kubernetes.Interface) (*feasible.Filters, error) {
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	f, err := feasible.New(ctx, kube, factory)
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), f.HasSynced) {
		return nil, errors.New("volumes and claims were not read")
	}
	for i := range nodes.Items {
		f.SetNode(&nodes.Items[i])
	}
	for i := range pods.Items {
		if _, err := f.Count(&pods.Items[i], podstate.TargetNode(&pods.Items[i])); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// untilForbidden ends everything at the first answer that says no.
type untilForbidden struct {
	http.RoundTripper
	end context.CancelCauseFunc
}

func (u *untilForbidden) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := u.RoundTripper.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusForbidden {
		u.end(fmt.Errorf("you may not list and watch %s in all namespaces", path.Base(r.URL.Path)))
	}
	return answer, err
}
