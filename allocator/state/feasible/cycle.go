// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"

	"vernier.dev/vernier/allocator/state/podstate"
)

// Cycle judges nodes for one pod, all against the same moment.
type Cycle struct {
	filters *Filters
	pod     *corev1.Pod
	run     run
	// pinned is the run for the node that was accepted last.
	pinned run
}

// run is one pod that went through the plugins' PreFilter.
type run struct {
	pod   *corev1.Pod
	state fwk.CycleState
	// all is why every node is refused; nil otherwise.
	all []string
	// only are the nodes left by PreFilter, nil for all nodes; others is why the
	// rest is refused.
	only   sets.Set[string]
	others []string
}

// Start begins a cycle for the pod as it will be when our gate is gone.
func (f *Filters) Start(ctx context.Context, pod *corev1.Pod) (*Cycle, error) {
	if err := f.cache.UpdateSnapshot(klog.Background(), f.snapshot); err != nil {
		return nil, fmt.Errorf("scheduler snapshot: %w", err)
	}
	free := *pod // plugins read pods and change none
	free.Spec.SchedulingGates = nil
	free.Spec.Containers, free.Spec.InitContainers = atStart(pod, pod.Spec.Containers), atStart(pod, pod.Spec.InitContainers)
	run, err := f.preFilter(ctx, &free)
	return &Cycle{filters: f, pod: &free, run: run}, err
}

// Refusals are the scheduler's reasons against the node; none means that it
// accepts.
//
// The node is judged twice. First for the pod as its owner wrote it, so that what
// the owner asked for holds. Then for the pod as it will be pinned, which is what
// the scheduler will see. A pin can turn an acceptance into a refusal, because
// topology spread counts only the domains that the node affinity leaves.
func (c *Cycle) Refusals(ctx context.Context, node string) ([]string, error) {
	reasons, err := c.filters.refusals(ctx, &c.run, node)
	if err != nil || len(reasons) > 0 {
		return reasons, err
	}
	pinned := *c.pod
	pinned.Spec.Affinity = podstate.PinTo(pinned.Spec.Affinity, node)
	if c.pinned, err = c.filters.preFilter(ctx, &pinned); err != nil {
		return nil, err
	}
	return c.filters.refusals(ctx, &c.pinned, node)
}

// Reserve has the filters take what the pod will of volumes and of other drivers' devices
// for taken, until the returned function is called. The node is the one that Refusals has
// accepted last.
func (c *Cycle) Reserve(ctx context.Context, node string) (end func(), err error) {
	f, r := c.filters.framework, c.pinned
	end = func() { f.RunReservePluginsUnreserve(context.WithoutCancel(ctx), r.state, r.pod, node) }
	if status := f.RunReservePluginsReserve(ctx, r.state, r.pod, node); !status.IsSuccess() {
		end()
		return nil, fmt.Errorf("reserving what the pod takes of node %s: %w", node, status.AsError())
	}
	return end, nil
}

func (f *Filters) preFilter(ctx context.Context, pod *corev1.Pod) (run, error) {
	r := run{pod: pod, state: framework.NewCycleState()}
	result, status, plugins := f.framework.RunPreFilterPlugins(ctx, r.state, pod)
	switch {
	case status.IsRejected():
		r.all = status.Reasons()
	case !status.IsSuccess():
		return r, fmt.Errorf("scheduler filters: %w", status.AsError())
	case !result.AllNodes():
		r.only = result.NodeNames
		r.others = []string{fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(plugins))}
	}
	return r, nil
}

func (f *Filters) refusals(ctx context.Context, r *run, node string) ([]string, error) {
	if r.all != nil {
		return r.all, nil
	}
	info, err := f.snapshot.Get(node)
	if err != nil {
		// A ledger whose node the watch has not shown yet, or that is gone.
		return []string{"node is not known"}, nil
	}
	if r.only != nil && !r.only.Has(node) {
		return r.others, nil
	}
	status := f.framework.RunFilterPluginsWithNominatedPods(ctx, r.state, r.pod, info)
	if status.IsRejected() {
		refusedNodes.WithLabelValues(status.Plugin()).Inc()
		// These two say nothing of which selector, or which taint.
		if plugin := status.Plugin(); plugin == nodeaffinity.Name || plugin == tainttoleration.Name {
			if against := Against(r.pod, info.Node()); against != "" {
				return []string{against}, nil
			}
		}
		return status.Reasons(), nil
	}
	return nil, status.AsError()
}
