// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// StartContainer applies what needs the container's process and cgroup. The
// process exists and is held before its first instruction; an error ends it.
func (p *Plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	sliced, err := p.start(ctx, pod, c)
	if err != nil {
		p.Log.Error(err, "Refused container", "pod", owner(pod), "container", c.GetName())
		return refusal(pod, c, err)
	}
	p.Containers.add(pod, podrequest.OfAnnotations(pod.GetAnnotations()), c, sliced, true)
	return nil
}

// start reports if the container holds slices.
func (p *Plugin) start(ctx context.Context, pod *api.PodSandbox, c *api.Container) (bool, error) {
	entry, entered := p.Table.Get(c.GetId())
	key := ledger.Key{Pod: uid(pod), Container: c.GetName()}
	if !entered && !marked(pod, c) && len(p.Ledger.Index().Grants(key)) == 0 {
		return false, nil
	}
	if !entry.Prepared {
		return false, errors.New("it holds slices whose limits it was not given at its creation; delete the pod so that it is created again")
	}
	m, err := p.Modes.For(entry.Container)
	if err != nil {
		return false, err
	}
	status, err := p.apply(ctx, m, entry.Container, c.GetPid())
	if err != nil {
		return false, fmt.Errorf("its limits cannot be set: %w", err)
	}
	now, _ := p.Devices.Snapshot()
	p.Modes.Explain(now, entry.Grants, status)
	p.Table.Started(c.GetId(), c.GetPid(), status, p.aligner(c.GetId()))
	if p.Started != nil {
		p.Started(ref(pod).Of(c.GetName()), inForce(now, entry.Grants, status))
	}
	return true, nil
}

// ReasonInForce is the reason of the event: which GPU a container has, and what holds its share.
const ReasonInForce = "SliceInForce"

// maxShown bounds the GPUs of an event: its text may have 1 KiB.
const maxShown = 4

// inForce says what the status does, for who may not read the ledger.
func inForce(now device.Snapshot, grants []ledger.Grant, status []v1alpha1.SliceStatus) string {
	var parts []string
	for _, s := range status {
		is, _ := now.Device(s.UUID)
		at := slices.IndexFunc(grants, func(g ledger.Grant) bool { return g.UUID == s.UUID })
		if at < 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("GPU %d (%s): %s, mode %s; guarantee of memory: %s, of compute: %s",
			is.Index, s.UUID, v1alpha1.AmountsText(grants[at].Core, grants[at].Mem), s.Mode, s.Memory, s.Compute))
	}
	return v1alpha1.NamesText(parts, maxShown)
}

// apply is the mode's Apply, as long as there is time. Unlike a creation, a start that
// fails is not tried again for a pod that starts no container twice (restartPolicy Never).
func (p *Plugin) apply(ctx context.Context, m mode.Mode, c mode.Container, pid uint32) (status []v1alpha1.SliceStatus, err error) {
	ctx, cancel := p.answering(ctx)
	defer cancel()
	type applied struct {
		status []v1alpha1.SliceStatus
		err    error
	}
	a, done := callWithDeadline(ctx, func() (a applied) {
		a.status, a.err = m.Apply(c, pid)
		return a
	})
	if !done {
		return nil, errors.New("the driver is too slow to answer, and the runtime waits no longer; see how long nvidia-smi takes on the node. With restartPolicy Never the pod has failed: create it again")
	}
	return a.status, a.err
}

// marked reports whether we prepared the container.
func marked(pod *api.PodSandbox, c *api.Container) bool {
	return hasKeyValue(api.FromOCIEnv(c.GetEnv()), v1alpha1.EnvSlice, pod.GetUid())
}

// UpdateContainer takes note of the CPUs that somebody else, as the kubelet, gives a
// container, and keeps an opportunistic one to its cap.
func (p *Plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	var updates []*api.ContainerUpdate
	if u := p.resized(pod, c, r); u != nil {
		updates = append(updates, u)
	}
	if h, found := p.Containers.Find(c.GetId()); found && h.Batch != nil {
		if u := p.Batch.Resized(*h.Batch, r); u != nil {
			updates = append(updates, u)
		}
	}
	return updates, nil
}

// StopContainer removes the container. Nothing here may depend on its
// cgroup, which is being removed at the same time.
func (p *Plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.ended(c)
	return nil, nil
}

// RemoveContainer does the same: the runtime undoes a failed creation by it.
func (p *Plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.ended(c)
	return nil
}

func (p *Plugin) ended(c *api.Container) {
	p.Containers.remove(c.GetId())
	p.Table.Detach(c.GetId())
}

// StopPodSandbox removes the containers that the runtime ended with the sandbox.
func (p *Plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.sandboxEnded(pod)
	return nil
}

// RemovePodSandbox does the same, for a sandbox that was never stopped.
func (p *Plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.sandboxEnded(pod)
	return nil
}

func (p *Plugin) sandboxEnded(pod *api.PodSandbox) {
	p.Containers.removeSandbox(pod.GetId())
	p.Table.DetachSandbox(pod.GetId())
}
