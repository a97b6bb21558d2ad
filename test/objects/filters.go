// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/test/must"
)

// Filters are the scheduler's, in a cluster of the objects, until ctx ends. They know of no
// node and of no pod yet.
func Filters(ctx context.Context, t testing.TB, objects ...runtime.Object) *feasible.Filters {
	t.Helper()
	kube := clientset.NewClientset(objects...)
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(podstate.Trim))
	filters := must.Get(feasible.New(ctx, kube, factory))(t)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), filters.HasSynced) {
		t.Fatal("the filters' caches did not fill")
	}
	return filters
}
