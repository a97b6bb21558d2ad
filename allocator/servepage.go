// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"vernier.dev/vernier/allocator/page"
	"vernier.dev/vernier/allocator/page/usage"
	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/api/access"
	"vernier.dev/vernier/api/v1alpha1"
)

// servePage puts the page on the manager, at an address. Every replica serves it,
// from its own caches.
func servePage(mgr manager.Manager, kube kubernetes.Interface, core coreinformers.Interface, agents *agents.Agents, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("the page: %w; set --page-bind-address", err)
	}
	pods, nodes := core.Pods().Lister(), core.Nodes().Lister()
	said := &verdicts{api: kube.CoreV1().RESTClient()}
	uses := usage.New(kube.CoreV1().ServiceAccounts(v1alpha1.SystemNamespace), agents.Metrics, clock.RealClock{})
	p := page.New(page.Sources{
		Ledgers: func(ctx context.Context) ([]*v1alpha1.SliceLedger, error) {
			list := &v1alpha1.SliceLedgerList{}
			// The page changes nothing of what it is given.
			err := mgr.GetCache().List(ctx, list, client.UnsafeDisableDeepCopy)
			all := make([]*v1alpha1.SliceLedger, 0, len(list.Items))
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
			return all, err
		},
		Gated: func() ([]*corev1.Pod, error) { return pods.List(labels.Everything()) },
		Pod:   func(namespace, name string) (*corev1.Pod, error) { return pods.Pods(namespace).Get(name) },
		Node: func(name string) *corev1.Node {
			node, _ := nodes.Get(name) // or there is none
			return node
		},
		Advice: func(ctx context.Context) ([]v1alpha1.SliceAdvice, error) {
			list := &v1alpha1.SliceAdviceList{}
			err := mgr.GetCache().List(ctx, list, client.UnsafeDisableDeepCopy)
			return list.Items, err
		},
		Classes: func(ctx context.Context) ([]v1alpha1.GPUClass, error) {
			list := &v1alpha1.GPUClassList{}
			err := mgr.GetCache().List(ctx, list, client.UnsafeDisableDeepCopy)
			return list.Items, err
		},
		Events: said.read,
		Uses:   uses.Of,
	}, page.Accesses{
		Ledgers: access.Ledgers(kube.AuthenticationV1(), kube.AuthorizationV1()),
		Use:     access.Use(kube.AuthenticationV1(), kube.AuthorizationV1()),
	}, mgr.GetLogger().WithName("page"))
	return mgr.Add(&manager.Server{Name: "page", Listener: listener, Server: &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 1 << 16,
	}})
}

// verdictsAge is how old the events that the page shows may be: every reader asks
// every few seconds, the API server need not be.
const verdictsAge = 5 * time.Second

// verdicts are the allocators' events on pods. A pod whose events are beyond the bounds is shown
// without them.
type verdicts struct {
	api rest.Interface

	mu     sync.Mutex
	at     time.Time
	events []corev1.Event
}

func (v *verdicts) read(ctx context.Context) ([]corev1.Event, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.at) < verdictsAge {
		return v.events, nil
	}
	events, _, err := eventlist.Read(ctx, v.api, "", notify.OnPods, time.Now())
	if err != nil {
		return nil, err
	}
	v.at, v.events = time.Now(), events
	return v.events, nil
}
