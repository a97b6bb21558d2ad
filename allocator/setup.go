// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"vernier.dev/vernier/allocator/advice"
	"vernier.dev/vernier/allocator/kueue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scaleup"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/allocator/state/tides"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
)

// requests is how many an allocator has under way at a time. More do not make a
// busy API server faster; it has its own fairness for the rest.
const requests = 16

// servedPatience is how long a replica waits for PodGroups, and for Kueue's Workloads, before it is
// ready all the same: only the pods that name one need them.
const servedPatience = 5 * time.Second

// Setup puts an allocator on the manager: caches that are always warm,
// the worker, which runs while it leads, and the page. The ctx bounds them. PodTemplates makes what reads
// pods as admission does, by the GPUClasses that there are.
func Setup(ctx context.Context, mgr manager.Manager, o Options, podTemplates func(known *classes.Set) kueue.Read) error {
	return setup(ctx, mgr, o, podTemplates, clock.RealClock{}, &agents.Agents{})
}

// setup is Setup with the clock of all but the lease, and without the agents' pods where
// there are none.
func setup(ctx context.Context, mgr manager.Manager, o Options, podTemplates func(known *classes.Set) kueue.Read, clock clock.WithTicker, pods *agents.Agents) error {
	// Every change of every pod comes by these watches: protobuf is less work than JSON,
	// here and in the API server.
	compact := rest.CopyConfig(mgr.GetConfig())
	compact.ContentType = runtime.ContentTypeProtobuf
	compact.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// Not the given clock: a test's may run faster than the API server's.
	now := servertime.New(time.Now, servertime.SinceBoot)
	compact.Wrap(now.Wrap)
	kube, err := kubernetes.NewForConfig(compact)
	if err != nil {
		return err
	}
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(podstate.Trim))
	filters, err := feasible.New(ctx, kube, factory)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	context.AfterFunc(ctx, events.Shutdown)
	sizes, known, nodes, namespaces := &podgroup.Sizes{}, &classes.Set{}, factory.Core().V1().Nodes().Lister(), factory.Core().V1().Namespaces().Lister()
	nodeOf := func(name string) *corev1.Node {
		node, err := nodes.Get(name)
		if err != nil {
			return nil // it is not known
		}
		return node
	}
	labelsOf := func(name string) (map[string]string, bool) {
		if node := nodeOf(name); node != nil {
			return node.Labels, true
		}
		return nil, false
	}
	selected := &tides.Set{Now: now.Read, Labels: labelsOf}
	r := &replica{
		allocator: New(Config{
			Client:     direct,
			Filters:    filters,
			Events:     events.NewRecorder(mgr.GetScheme(), corev1.EventSource{Component: notify.Component}),
			Clock:      clock,
			Log:        mgr.GetLogger().WithName("allocator"),
			Groups:     sizes,
			Classes:    known,
			Tides:      selected,
			NodeLabels: labelsOf,
			Overcommit: func(node string) (v1alpha1.Percent, bool) {
				has, known := labelsOf(node)
				return o.OvercommitCore.of(has), known
			},
			Enabled: func(name string) (enabled, known bool) {
				namespace, err := namespaces.Get(name)
				return err == nil && namespace.Labels[v1alpha1.LabelInject] == v1alpha1.LabelInjectEnabled, err == nil
			},
			PodTemplates: podTemplates(known),
			Agents:       pods,
			Requests:     requests,

			Preemption:      o.Preemption,
			PriorityClasses: o.PriorityClasses,
			ReserveAfter:    o.ReserveAfter,
			Lookahead:       o.Lookahead,
			IdleAfter:       o.IdleAfter,
			Defragment:      o.Defragment,
		}),
		sizes:   sizes,
		classes: known,
		tides:   selected,
		factory: factory,
		manager: mgr,
		api:     kube.CoreV1().RESTClient(),
		warm:    make(chan struct{}),
	}
	r.advice = &advice.Keeper{
		Client: direct, Cache: mgr.GetCache(), Namespace: factory.Core().V1().Namespaces().Lister().Get,
		Clock: clock, Log: mgr.GetLogger().WithName("advice"),
	}
	a := r.allocator
	r.scaleup = &scaleup.Keeper{
		Client: direct, Namespace: v1alpha1.SystemNamespace, MaxGPUs: int(o.MaxGPUs), Cache: a.cache, Queue: a.queue, Groups: a.groups, Reservations: a.reservations,
		Filters: filters, Classes: known, Node: nodeOf, Clock: clock, Log: mgr.GetLogger().WithName("scaleup"),
	}
	if err := register(ctx, r.allocator.Collector()); err != nil {
		return err
	}
	r.watcher = &served.Watcher{
		Discovery: kube.Discovery().RESTClient(), Dynamic: objects, Clock: clock, Log: mgr.GetLogger().WithName("served"),
		Resources: append(sizes.Resources(r.allocator.GroupChanged, r.allocator.GroupsChanged), r.allocator.workloads.Resources()...),
	}
	if o.Page != "0" {
		if err := servePage(mgr, kube, factory.Core().V1(), pods, o.Page); err != nil {
			return err
		}
	}
	return errors.Join(mgr.Add(standby{r}), mgr.Add(manager.RunnableFunc(r.lead)), mgr.Add(manager.RunnableFunc(r.beside(r.advice.Lead))), mgr.Add(manager.RunnableFunc(r.beside(r.scaleup.Lead))), watchClasses(mgr), watchTides(mgr, now.Read), mgr.AddReadyzCheck("caches", r.ready))
}

type replica struct {
	allocator *Allocator
	sizes     *podgroup.Sizes
	classes   *classes.Set
	tides     *tides.Set
	factory   informers.SharedInformerFactory
	watcher   *served.Watcher
	manager   manager.Manager
	api       rest.Interface
	advice    *advice.Keeper
	scaleup   *scaleup.Keeper
	// warm is closed when everything that exists has been taken in.
	warm chan struct{}
}

// standby is the part of a replica that runs without leading.
type standby struct{ *replica }

func (standby) NeedLeaderElection() bool { return false }

// Start feeds the allocator until ctx ends.
func (s standby) Start(ctx context.Context) error {
	a := s.allocator
	ledgers, err := s.manager.GetCache().GetInformer(ctx, &v1alpha1.SliceLedger{})
	if err != nil {
		return fmt.Errorf("watching ledgers: %w", err)
	}
	if err := s.classes.Follow(ctx, s.manager.GetCache(), a.ClassesChanged); err != nil {
		return err
	}
	tidesSynced, err := s.tides.Follow(ctx, s.manager.GetCache(), a.TidesChanged)
	if err != nil {
		return err
	}
	pods, nodes := s.factory.Core().V1().Pods().Informer(), s.factory.Core().V1().Nodes().Informer()
	fromLedgers, err1 := ledgers.AddEventHandler(ledgerFeed(a))
	fromPods, err2 := pods.AddEventHandler(podFeed(a))
	fromNodes, err3 := nodes.AddEventHandler(nodeFeed(a))
	if err := errors.Join(err1, err2, err3, a.Filters.OnChange(a.Changed), onChange(a.binder.RetryRefused, admission(s.factory)...)); err != nil {
		return err
	}
	s.factory.Start(ctx.Done())
	defer s.factory.Shutdown()
	var watching sync.WaitGroup
	watching.Go(func() { s.watcher.Run(ctx) })
	defer watching.Wait()
	for kind, synced := range s.factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("the cache of %v did not fill", kind)
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), fromLedgers.HasSynced, fromPods.HasSynced, fromNodes.HasSynced, s.classes.HasSynced, tidesSynced, a.Filters.HasSynced) {
		return ctx.Err()
	}
	s.sizes.Await(ctx, servedPatience)
	a.workloads.Await(ctx, servedPatience)
	close(s.warm)
	<-ctx.Done()
	return nil
}

// admission are what may refuse a write, or no longer: a namespace has the labels that policies
// and webhooks select by.
func admission(factory informers.SharedInformerFactory) []cache.SharedIndexInformer {
	v1 := factory.Admissionregistration().V1()
	return []cache.SharedIndexInformer{
		factory.Core().V1().Namespaces().Informer(),
		v1.ValidatingAdmissionPolicies().Informer(), v1.ValidatingAdmissionPolicyBindings().Informer(),
		v1.ValidatingWebhookConfigurations().Informer(), v1.MutatingWebhookConfigurations().Informer(),
	}
}

// onChange calls changed for whatever happens to the objects.
func onChange(changed func(), of ...cache.SharedIndexInformer) error {
	for _, informer := range of {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		}); err != nil {
			return err
		}
	}
	return nil
}

func (r *replica) lead(ctx context.Context) error {
	select {
	case <-r.warm:
		r.allocator.notify.BeginHandover()
		go r.allocator.notify.Handover(ctx, r.api)
		return r.allocator.Lead(ctx)
	case <-ctx.Done():
		return nil
	}
}

// beside runs something beside the worker while the replica leads.
func (r *replica) beside(lead func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-r.warm:
			return lead(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *replica) ready(*http.Request) error {
	select {
	case <-r.warm:
		return nil
	default:
		return errors.New("the caches are not filled yet")
	}
}

func podFeed(a *Allocator) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { a.SetPod(obj.(*corev1.Pod)) },
		UpdateFunc: func(was, is any) {
			// Another UID means that the deletion between the two was not seen.
			if old := was.(*corev1.Pod); old.UID != is.(*corev1.Pod).UID {
				a.DeletePod(old, false)
			}
			a.SetPod(is.(*corev1.Pod))
		},
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				a.DeletePod(missed.Obj.(*corev1.Pod), false)
				return
			}
			a.DeletePod(obj.(*corev1.Pod), true)
		},
	}
}

func nodeFeed(a *Allocator) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.SetNode(nil, obj.(*corev1.Node)) },
		UpdateFunc: func(was, is any) { a.SetNode(was.(*corev1.Node), is.(*corev1.Node)) },
		DeleteFunc: func(obj any) { a.DeleteNode(lastState(obj).(*corev1.Node)) },
	}
}

func ledgerFeed(a *Allocator) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.SetLedger(obj.(*v1alpha1.SliceLedger)) },
		UpdateFunc: func(_, is any) { a.SetLedger(is.(*v1alpha1.SliceLedger)) },
		DeleteFunc: func(obj any) { a.DeleteLedger(lastState(obj).(*v1alpha1.SliceLedger)) },
	}
}

func lastState(obj any) any {
	if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return missed.Obj
	}
	return obj
}
