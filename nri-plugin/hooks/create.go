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
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/environ"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// annotationRestored is containerd's on a container that it restores. Up to 2.3 it does so for
// an image that is a checkpoint, and calls no plugin's StartContainer.
const annotationRestored = "restored"

// CreateContainer gives a container its slices, and a container without slices
// nothing. An error keeps the container from being created.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjust, err := p.create(ctx, pod, c)
	if err != nil {
		p.Log.Error(err, "Refused container", "pod", owner(pod), "container", c.GetName())
		return nil, nil, refusal(pod, c, err)
	}
	return adjust, nil, nil
}

func (p *Plugin) create(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	ctx, cancel := p.answering(ctx)
	defer cancel()
	request := podrequest.OfAnnotations(pod.GetAnnotations())
	grants, index, err := p.grants(ctx, pod, request, c)
	if err != nil {
		return nil, err
	}
	if len(grants) > 0 || request.Marked {
		if err := reserved(c); err != nil {
			return nil, err
		}
	}
	if len(grants) == 0 {
		return denyGPU(c)
	}
	if isPrivileged(c) {
		return nil, errors.New("a privileged container reaches every GPU, so its slice would mean nothing; remove securityContext.privileged")
	}
	if holder, _ := index.Owner(uid(pod)); holder != owner(pod) {
		return nil, fmt.Errorf("the slices of its UID are those of pod %s. A static pod has the UID that its manifest on the node names: take it out there", holder)
	}
	if c.GetAnnotations()[annotationRestored] == "true" {
		return nil, errors.New("its image is a checkpoint, which the runtime starts without the limits of its slices; start it from its image instead")
	}
	if p.IdleEnded != nil && p.IdleEnded(uid(pod)) {
		return nil, errors.New("its idle slice is ended: this node's tide lends less than idle slices have, or the memory that was lent to it is needed. Its pod is evicted, and its controller makes another")
	}
	if index.Leaving(uid(pod)) {
		return nil, errors.New("its idle slice is being taken back: the memory was granted to others. Its pod is evicted, and its controller makes another")
	}
	steering, err := steers(c, grants)
	if err != nil {
		return nil, err
	}
	if err := p.check(ctx, grants, index); err != nil {
		return nil, err
	}
	if err := request.NodeErr(); err != nil {
		return nil, fmt.Errorf("%w; create the pod again with one of them", err)
	}
	// The user's own word is enough: the time is nobody else's while it is used,
	// and goes back as soon as somebody wants it.
	held := mode.Container{
		Pod: uid(pod), Owner: owner(pod), Name: c.GetName(), ID: c.GetId(), Grants: grants, MayBurst: request.Burst == v1alpha1.BurstIdle, Burstable: request.QoS == v1alpha1.QoSBurstable,
	}
	m, err := p.Modes.For(held)
	if err != nil {
		return nil, err
	}
	now, _ := p.Devices.Snapshot()
	if err := p.Modes.Supports(now, held); err != nil {
		return nil, err
	}
	if err := checkTopology(pod, request.Topology, index, &now); err != nil {
		return nil, err
	}
	cpus, err := p.decideCPUs(pod, request, c, grants, index, &now)
	if err != nil {
		return nil, err
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv(v1alpha1.EnvSlice, pod.GetUid())
	if cpus.bind {
		adjust.SetLinuxCPUSetCPUs(cpus.Set.String())
	}
	for _, v := range environ.Of(request.Dialect, request.Shares, grants, &now) {
		adjust.AddEnv(v.Name, v.Value)
	}
	if err := p.injectRDMA(request.RDMA, grants, &now, adjust); err != nil {
		return nil, err
	}
	if request.QoS == v1alpha1.QoSOpportunistic {
		p.Batch.Adjust(c, adjust)
	}
	if err := maskVisibleDevices(c, adjust); err != nil {
		return nil, err
	}
	// Entered before anything is made: from here on the slices are in use, until
	// the runtime says that the container is gone.
	if err := p.Table.Attach(attach.Entry{
		Container: held, Sandbox: pod.GetId(), Prepared: true, Adjust: adjust, CPUs: cpus.CPUs, Grace: grace(c),
	}); err != nil {
		return nil, err
	}
	if err := m.Inject(held, adjust); err != nil {
		p.Table.Detach(held.ID)
		return nil, err
	}
	steering.adjust(adjust)
	var own []string
	if p.Env != nil {
		own = p.Env(ref(pod).Of(held.Name))
	}
	if message := steering.message(held.Name, own); message != "" {
		p.Report.Warn(ref(pod).Of(held.Name), ReasonVariables, message)
	}
	if cpus.unbound != "" {
		p.Report.Warn(ref(pod).Of(held.Name), ReasonUnbound, cpus.unbound)
	}
	return adjust, nil
}

// denyGPU gives a container without slices nothing. From a privileged one nothing can be
// withheld.
func denyGPU(c *api.Container) (*api.ContainerAdjustment, error) {
	if isPrivileged(c) {
		return nil, nil
	}
	adjust := &api.ContainerAdjustment{}
	return adjust, maskVisibleDevices(c, adjust)
}

// check asks the driver about the devices, and the ledger. A driver that is slow now would
// be at the start too, which is not tried again for every pod; a creation is.
func (p *Plugin) check(ctx context.Context, grants []ledger.Grant, index *ledger.Index) error {
	err, done := callWithDeadline(ctx, func() error {
		for _, g := range grants {
			if err := p.Devices.Check(g.UUID, g.DeviceMem); err != nil {
				return err
			}
		}
		return nil
	})
	if !done {
		return errors.New("the driver is too slow to answer; it is tried again; see how long nvidia-smi takes on the node")
	}
	if err != nil {
		return err
	}
	for _, g := range grants {
		if !index.Healthy(g) {
			return fmt.Errorf("device %s has recovered but its ledger is not updated yet, so the slices may still move to another device; retrying", g.UUID)
		}
	}
	return nil
}

// grants are the slices that the ledger gives the container. The pod's shares
// annotation is only compared with them: it can make the container fail and can
// never give it anything.
func (p *Plugin) grants(ctx context.Context, pod *api.PodSandbox, request *podrequest.Request, c *api.Container) ([]ledger.Grant, *ledger.Index, error) {
	key := ledger.Key{Pod: uid(pod), Container: c.GetName()}
	if request.Marked && request.SharesErr != nil {
		return nil, nil, fmt.Errorf("%w; create the pod again and leave that annotation to the system", request.SharesErr)
	}
	// Without the annotation the ledger still decides: it may have been removed from the
	// pod, its slices have not.
	share, asked := request.Shares[c.GetName()]
	index := p.Ledger.Index()
	if asked && len(index.Grants(key)) == 0 || index.Held(key.Pod) || p.moved(pod, request, c, index) {
		var err error
		// The watch can be behind the allocator, who lets the pod go after it has written
		// its slices, and ended the hold.
		if index, err = p.fetch(ctx); err != nil {
			return nil, nil, err
		}
		if index.Held(key.Pod) {
			return nil, nil, errors.New("its slices are held for its gang and not granted yet: not the allocator has taken its scheduling gate off; it is tried again")
		}
	}
	grants := index.Grants(key)
	if !asked {
		return ledger.Initial(grants), index, nil
	}
	if len(grants) == 0 {
		return nil, nil, fmt.Errorf("the ledger of this node has no slice for it; pods get slices from vernier-allocator: remove spec.nodeName and annotation %s and create the pod again", v1alpha1.AnnotationShares)
	}
	if err := agree(share, grants); err != nil {
		return nil, nil, fmt.Errorf("annotation %s and the ledger differ: %w; create the pod again and leave that annotation to the system", v1alpha1.AnnotationShares, err)
	}
	return ledger.Initial(grants), index, nil
}

// moved reports whether a container's slices may be elsewhere than the watch has shown:
// they were taken back and granted again before the pod was ungated, moved off an
// unhealthy device, or moved to its CPUs. The annotation may be anybody's; it can only make us ask.
func (p *Plugin) moved(pod *api.PodSandbox, request *podrequest.Request, c *api.Container, index *ledger.Index) bool {
	grants := index.Grants(ledger.Key{Pod: uid(pod), Container: c.GetName()})
	if len(grants) == 0 {
		return false
	}
	if _, follows := p.Misaligned.Find(uid(pod)); follows || p.Ledger.Behind() || slices.ContainsFunc(grants, func(g ledger.Grant) bool { return !index.Healthy(g) }) {
		return true
	}
	return slices.ContainsFunc(grants, func(g ledger.Grant) bool { return request.Misplaces(c.GetName(), g.UUID) })
}

// fetch is the ledger as the API server has it now.
func (p *Plugin) fetch(ctx context.Context) (*ledger.Index, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	index, err := p.Ledger.Fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("its slices cannot be confirmed: %w; it is tried again once the API server answers", err)
	}
	return index, nil
}

func agree(share v1alpha1.Share, grants []ledger.Grant) error {
	if int(share.GPUs) != len(grants) {
		return fmt.Errorf("%d GPUs asked, %d granted", share.GPUs, len(grants))
	}
	for _, g := range grants {
		mem, err := share.Memory(g.DeviceMem)
		switch {
		case err != nil:
			return err
		case share.Core != g.Asked.Core:
			return fmt.Errorf("%d core asked, %d granted on device %s", share.Core, g.Asked.Core, g.UUID)
		case mem != g.Asked.Mem:
			return fmt.Errorf("%d MiB asked, %d granted on device %s", mem, g.Asked.Mem, g.UUID)
		}
	}
	return nil
}
