// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package advice

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// A leader makes advice of what a node publishes, keeps it when the node is deleted, and a next
// leader counts nothing twice.
func TestLead(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{})
	api := apiserver.Client(t, cfg)
	must.Do(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}}))
	clock := clocktesting.NewFakeClock(time.Now())
	lead := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		from := must.Get(ctrlcache.New(cfg, ctrlcache.Options{Scheme: api.Scheme(), ByObject: map[client.Object]ctrlcache.ByObject{&v1alpha1.SliceUsage{}: {Transform: Slim}}}))(t)
		ended := make(chan error, 2)
		go func() { ended <- from.Start(ctx) }()
		k := &Keeper{Client: api, Cache: from, Clock: clock, Log: logr.Discard(), Namespace: func(name string) (*corev1.Namespace, error) {
			n := &corev1.Namespace{}
			return n, api.Get(ctx, client.ObjectKey{Name: name}, n)
		}}
		go func() { ended <- k.Lead(ctx) }()
		return func() {
			cancel()
			for range 2 {
				must.Do(t, <-ended)
			}
		}
	}
	await := func(what string, is func(*v1alpha1.SliceAdviceStatus) bool) {
		t.Helper()
		o := &v1alpha1.SliceAdvice{}
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			clock.Step(turn)
			err := api.Get(ctx, client.ObjectKey{Namespace: "team", Name: "deployment.web.main"}, o)
			return err == nil && is(&o.Status), client.IgnoreNotFound(err)
		}); err != nil {
			t.Fatalf("%s: %v: %+v", what, err, o.Status)
		}
	}
	u := &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	must.Do(t, api.Create(t.Context(), u))
	u.Status.Containers = []v1alpha1.ContainerUse{entry(t, used(clock.Now(), 60, 10, 1000))}
	must.Do(t, api.Status().Update(t.Context(), u))

	end := lead()
	await("published", func(s *v1alpha1.SliceAdviceStatus) bool {
		return s.Samples == 60 && s.Slices == 1 && s.Checkpoint == ""
	})
	must.Do(t, api.Delete(t.Context(), u))
	await("deleted", func(s *v1alpha1.SliceAdviceStatus) bool {
		return s.Samples == 60 && s.Slices == 0 && s.Checkpoint != ""
	})
	end()
	defer lead()()
	next := &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	must.Do(t, api.Create(t.Context(), next))
	next.Status.Containers = []v1alpha1.ContainerUse{entry(t, used(clock.Now(), 5, 10, 1000))}
	must.Do(t, api.Status().Update(t.Context(), next))
	await("another node's", func(s *v1alpha1.SliceAdviceStatus) bool { return s.Samples == 65 })
}
