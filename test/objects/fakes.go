// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// Scheme has the types of Kubernetes and ours.
func Scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kubernetes.AddToScheme, v1alpha1.AddToScheme} {
		must.Do(t, add(scheme))
	}
	return scheme
}

// Server is an API server in memory that has the objects.
func Server(t testing.TB, objects ...client.Object) client.WithWatch {
	t.Helper()
	return TrackedServer(t, func(tracker clienttesting.ObjectTracker) clienttesting.ObjectTracker { return tracker }, objects...)
}

// TrackedServer is a Server of which a test sees what is stored.
func TrackedServer(t testing.TB, track func(clienttesting.ObjectTracker) clienttesting.ObjectTracker, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := Scheme(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.SchemeGroupVersion.WithKind("SliceLedger"), meta.RESTScopeRoot)
	// The usual tracker looks at managedFields, which a ledger's writer empties, and takes half of the
	// time of a soak for it.
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	return fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjectTracker(track(tracker)).
		WithStatusSubresource(&v1alpha1.SliceLedger{}, &corev1.Pod{}).WithObjects(objects...).Build()
}

// Work is a work queue without goroutines that only notes what is added. It belongs to one
// goroutine.
type Work[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	// Due are the items that were added, Later those that are to be after some time, the
	// shortest that was asked for.
	Due   map[T]bool
	Later map[T]time.Duration
}

// NewWork is empty.
func NewWork[T comparable]() *Work[T] {
	w := &Work[T]{}
	w.Clear()
	return w
}

// Clear empties it.
func (w *Work[T]) Clear() { w.Due, w.Later = map[T]bool{}, map[T]time.Duration{} }

// Add notes an item.
func (w *Work[T]) Add(item T) { w.Due[item] = true }

// AddAfter notes an item and the delay.
func (w *Work[T]) AddAfter(item T, delay time.Duration) {
	if before, waits := w.Later[item]; !waits || delay < before {
		w.Later[item] = delay
	}
}

// NoFilters count pods nowhere.
type NoFilters struct{}

// Count changes nothing.
func (NoFilters) Count(*corev1.Pod, string) (bool, error) { return false, nil }

// Nominate changes nothing.
func (NoFilters) Nominate(*corev1.Pod, string) (bool, error) { return false, nil }

// Overcommitted is never so.
func (NoFilters) Overcommitted(string) bool { return false }
