// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"vernier.dev/vernier/allocator/state/priority"
)

// Filters is the default scheduler's opinion of the cluster. SetNode, DeleteNode
// and Count may be called concurrently with everything; cycles run one at a time.
type Filters struct {
	factory   inOrder
	known     known
	budgets   *budgets
	framework framework.Framework
	cache     schedulercache.Cache
	// snapshot is what a cycle sees; Start brings it up to date.
	snapshot *schedulercache.Snapshot

	// mu guards the maps. nodes and pods mirror what the cache holds: it wants to be
	// told what an update replaces.
	mu    sync.Mutex
	nodes map[string]*corev1.Node
	pods  map[types.UID]*corev1.Pod
	// changed are the nodes that Changed has not told of yet.
	changed map[string]bool
	// nominated are the pods that Nominate notes, by node, and nominatedTo is their node.
	nominated   map[string]map[types.UID]fwk.PodInfo
	nominatedTo map[types.UID]string
	// classes is how many pods are counted, by what their priority follows from.
	classes map[priority.Class]int

	// preemption is the scheduler's way to find whom to end. It is only asked.
	preemption *defaultpreemption.DefaultPreemption
}

// metricsOnce because the scheduler's metrics are package variables. They are
// made, as the plugins use them, and not registered.
var metricsOnce sync.Once

// New builds the default profile. Its plugins read volumes, claims, namespaces
// and the like from the factory, which the caller starts afterwards. ctx bounds
// the plugins' goroutines.
func New(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory) (*Filters, error) {
	metricsOnce.Do(metrics.InitMetrics)
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("default scheduler configuration: %w", err)
	}
	inTurn := newInOrder(factory)
	offered, err := tracker.StartTracker(ctx, tracker.Options{SliceInformer: inTurn.Resource().V1().ResourceSlices(), KubeClient: client})
	if err != nil {
		return nil, fmt.Errorf("resource slice tracker: %w", err)
	}
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), inTurn.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	devices := dynamicresources.NewDRAManager(ctx, claims, offered, inTurn)
	if classes, ok := devices.DeviceClassResolver().(cache.ResourceEventHandler); ok {
		if _, err := inTurn.Resource().V1().DeviceClasses().Informer().AddEventHandler(classes); err != nil {
			return nil, err
		}
	}
	f := &Filters{
		factory:  inTurn,
		cache:    schedulercache.New(ctx, nil, false),
		snapshot: schedulercache.NewEmptySnapshot(),
		nodes:    map[string]*corev1.Node{},
		pods:     map[types.UID]*corev1.Pod{},
		changed:  map[string]bool{},

		nominated: map[string]map[types.UID]fwk.PodInfo{}, nominatedTo: map[types.UID]string{}, classes: map[priority.Class]int{},
	}
	f.framework, err = runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &defaults.Profiles[0],
		runtime.WithClientSet(client),
		runtime.WithInformerFactory(inTurn),
		runtime.WithSnapshotSharedLister(f.snapshot),
		runtime.WithSharedDRAManager(devices),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		runtime.WithPodGroupManager(f.cache),
		runtime.WithPodNominator(nominator{f}),
	)
	if err != nil {
		return nil, fmt.Errorf("default scheduler profile: %w", err)
	}
	for _, c := range defaults.Profiles[0].PluginConfig {
		if c.Name == defaultpreemption.Name {
			f.preemption, err = defaultpreemption.New(ctx, c.Args, f.framework, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
		}
	}
	if err != nil || f.preemption == nil {
		return nil, fmt.Errorf("default scheduler preemption: %w", err)
	}
	// After the plugins' own handlers, of which there are all now.
	var failed error
	f.known, err = watchKnown(inTurn)
	f.budgets, failed = watchBudgets(inTurn)
	return f, errors.Join(err, failed)
}

// HasSynced reports whether the filters have taken in the volumes, claims and
// the like of the factory's start. Its informers have them before.
func (f *Filters) HasSynced() bool { return f.factory.hasSynced() }

// OnChange calls changed with each change of an object that the filters read, pods and nodes apart.
// It gets the object before and after it, nil where there was or is none. The filters know of the
// change by then. Call it before the factory is started.
func (f *Filters) OnChange(changed func(was, is any)) error {
	for _, kind := range f.Kinds() {
		if _, err := f.factory.informers[kind].AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(is any) { changed(nil, is) },
			UpdateFunc: func(was, is any) { changed(was, is) },
			DeleteFunc: func(was any) {
				if missed, ok := was.(cache.DeletedFinalStateUnknown); ok {
					was = missed.Obj
				}
				changed(was, nil)
			},
		}); err != nil {
			return err
		}
	}
	return nil
}

// Kinds are the types of the objects that the filters read, pods and nodes apart.
func (f *Filters) Kinds() (kinds []reflect.Type) {
	for kind := range f.factory.informers {
		if kind != reflect.TypeFor[*corev1.Pod]() && kind != reflect.TypeFor[*corev1.Node]() {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Events are the changes that the scheduler's plugins have registered as such that may turn their
// refusals into acceptances.
func (f *Filters) Events(ctx context.Context) (all []fwk.ClusterEvent, err error) {
	for _, plugin := range f.framework.EnqueueExtensions() {
		events, err := plugin.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("events of plugin %s: %w", plugin.Name(), err)
		}
		for _, e := range events {
			all = append(all, e.Event)
		}
	}
	return all, nil
}

// SetNode takes in a node.
func (f *Filters) SetNode(node *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.nodes[node.Name]; old != nil {
		f.cache.UpdateNode(klog.Background(), old, node)
	} else {
		f.cache.AddNode(klog.Background(), node)
	}
	f.nodes[node.Name] = node
	f.changed[node.Name] = true
}

// DeleteNode takes out a node; pods counted on it stay counted until they go.
func (f *Filters) DeleteNode(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.nodes[name]
	if old == nil {
		return nil
	}
	delete(f.nodes, name)
	f.changed[name] = true
	return f.cache.RemoveNode(klog.Background(), old)
}

// Count counts the pod on the node, whatever its own nodeName. A pod that was
// placed but not yet bound is counted where it will go. An empty node counts it
// nowhere. It reports whether that may change the answer for other pods.
func (f *Filters) Count(pod *corev1.Pod, node string) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.pods[pod.UID]
	if old != nil && old.Spec.NodeName != node {
		if err := f.cache.RemovePod(klog.Background(), old); err != nil {
			return false, err
		}
		delete(f.pods, pod.UID)
		if c := priority.ClassOf(old); f.classes[c] > 1 {
			f.classes[c]--
		} else {
			delete(f.classes, c)
		}
		f.changed[old.Spec.NodeName] = true
		old, changed = nil, true
	}
	if node == "" || old != nil && old.ResourceVersion != "" && old.ResourceVersion == pod.ResourceVersion {
		return changed, nil
	}
	if pod.Spec.NodeName != node {
		there := *pod // nobody changes what it shares with the other
		there.Spec.NodeName = node
		pod = &there
	}
	f.pods[pod.UID] = pod
	f.changed[node] = true
	if old != nil {
		changed = !sameToOthers(old, pod)
		return changed, f.cache.UpdatePod(klog.Background(), old, pod)
	}
	f.classes[priority.ClassOf(pod)]++
	return true, f.cache.AddPod(klog.Background(), pod)
}
