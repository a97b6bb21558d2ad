// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// Reasons of events.
const (
	// ReasonUnenforced: a container with slices ran without its limits.
	ReasonUnenforced = "UnenforcedSlice"
	// ReasonUnmanaged: a container without slices holds a GPU.
	ReasonUnmanaged = "UnmanagedGPU"
)

// Synchronize rebuilds the table from the runtime's list, after every connection.
// No running container that has its limits is touched.
//
// If the driver does not answer in time, it is asked once more when this is over (Observe).
// An agent that is late is dropped, and would be again at the next attempt.
func (p *Plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	ctx, cancel := p.answering(ctx)
	defer cancel()
	// However long the runtime waits, a session that is not registered in time is given up.
	ctx, stop := context.WithTimeout(ctx, registerTimeout/2)
	defer stop()
	index := p.Ledger.Index()
	sandboxes := make(map[string]*api.PodSandbox, len(pods))
	requests := make(map[string]*podrequest.Request, len(pods))
	for _, pod := range pods {
		sandboxes[pod.GetId()], requests[pod.GetId()] = pod, podrequest.OfAnnotations(pod.GetAnnotations())
	}
	p.Containers.clear()
	var entries []attach.Entry
	for _, c := range containers {
		pod, known := sandboxes[c.GetPodSandboxId()]
		if !known || !lives(c) {
			continue
		}
		grants := index.Grants(ledger.Key{Pod: uid(pod), Container: c.GetName()})
		prepared := marked(pod, c)
		p.Containers.add(pod, requests[pod.GetId()], c, prepared || len(grants) > 0, false)
		switch {
		case len(grants) > 0 && !prepared:
			p.unenforced(pod, c)
		case len(grants) == 0 && !isPrivileged(c) && holdsGPU(c):
			p.Report.Warn(ref(pod).Of(c.GetName()), ReasonUnmanaged, fmt.Sprintf("container %s holds a GPU and has no slice of it. Other pods' limits do not hold against it: delete the pod and ask for %s", c.GetName(), v1alpha1.ResourceCore))
		}
		if len(grants) == 0 && !prepared {
			continue
		}
		// Entered even when the ledger has lost its slices: it uses the device,
		// so it counts there and nothing of its pod may be given back.
		entry := attach.Entry{Sandbox: pod.GetId(), Prepared: prepared, Grace: grace(c), Container: mode.Container{
			Pod: uid(pod), Owner: owner(pod), Name: c.GetName(), ID: c.GetId(), Grants: grants, Mounts: c.GetMounts(),
		}}
		entry.CPUs = p.foundCPUs(requests[pod.GetId()], c)
		// One that does not run yet must not be started without the ledger.
		if prepared && c.GetState() != api.ContainerState_CONTAINER_CREATED {
			if len(grants) == 0 {
				entry.Grants = p.Modes.Recall(entry.Container, index.InUse())
				p.Log.Info("The ledger has lost the slices of a container that runs", "pod", owner(pod), "container", c.GetName(), "recalled", entry.Grants)
			}
			entry.Grants = p.Modes.AtLeast(entry.Container)
			entry.PID = c.GetPid()
			found := entry
			entry.Status, _ = callWithDeadline(ctx, func() []v1alpha1.SliceStatus { return p.observe(found) })
			if entry.Status != nil {
				p.aligner(entry.ID)(entry.Status, entry.CPUs.Set)
			}
		}
		entries = append(entries, entry)
	}
	p.Table.Reset(entries)
	p.Log.Info("Synchronized with the runtime", "pods", len(pods), "containers", len(containers), "withSlices", len(entries))
	return nil, nil
}

// Observe looks again at containers that were found running before NVML could
// tell what holds them.
func (p *Plugin) Observe() {
	for _, entry := range p.Table.Unobserved() {
		if status := p.observe(entry); status != nil {
			p.Table.Started(entry.ID, entry.PID, status, p.aligner(entry.ID))
		}
	}
}

func (p *Plugin) observe(entry attach.Entry) []v1alpha1.SliceStatus {
	m, err := p.Modes.For(entry.Container)
	if err != nil {
		return nil
	}
	status := m.Observe(entry.Container, entry.PID)
	now, _ := p.Devices.Snapshot()
	p.Modes.Explain(now, entry.Grants, status)
	return status
}

// unenforced deals with a container that has slices and started without us: the
// runtime did not wait for the plugin, which annotation required-plugins or the
// runtime's default validator would have made it do. Its process is ended; the
// kubelet then acts by the pod's restart policy and comes through us this time.
// The pod itself stays, with its slices.
func (p *Plugin) unenforced(pod *api.PodSandbox, c *api.Container) {
	message := fmt.Sprintf("container %s started without the limits of its slice and is ended, to be started with them; see that containerd has nri.default_validator enabled", c.GetName())
	if c.GetState() == api.ContainerState_CONTAINER_CREATED {
		// StartContainer refuses it.
		return
	}
	if err := p.Kill(c.GetPid(), c.GetId()); err != nil {
		p.Log.Error(err, "Cannot end a container without limits", "pod", owner(pod), "container", c.GetName())
		message = fmt.Sprintf("container %s started without the limits of its slice and cannot be ended (%v); delete the pod", c.GetName(), err)
	}
	p.Report.Warn(ref(pod).Of(c.GetName()), ReasonUnenforced, message)
}

// lives reports whether the container can still use a device.
func lives(c *api.Container) bool { return c.GetState() != api.ContainerState_CONTAINER_STOPPED }

// holdsGPU reports whether the container has one of the driver's nodes.
func holdsGPU(c *api.Container) bool {
	return slices.ContainsFunc(c.GetLinux().GetDevices(), func(d *api.LinuxDevice) bool { return isGPUNode(d.GetPath()) })
}
