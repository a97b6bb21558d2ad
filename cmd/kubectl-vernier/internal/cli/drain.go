// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/drain"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// drainLook is the pause between looks at a device that is being drained.
	drainLook = time.Second
	// evictAgain is the pause before an eviction that a PodDisruptionBudget has
	// refused is tried again, as long as kubectl's.
	evictAgain = 5 * time.Second
)

// drainer is the flags of drain, which mean what they mean to kubectl drain.
type drainer struct {
	cordoner
	force, emptyDir bool
	timeout         time.Duration
	grace           int
}

func (c *command) drainCommand() *cobra.Command {
	d := &drainer{cordoner: cordoner{command: c}}
	cmd := d.sub("drain NODE/GPU...", "Grant nothing new on devices, and evict the pods that have slices of them", d.drain)
	cmd.Long = `Cordon devices and evict the pods that have slices of them, and only those; return
when nothing of the devices is granted any more.

Pods are evicted, so that PodDisruptionBudgets are kept: an eviction that one refuses is
tried again every 5 s. Pods of a DaemonSet are evicted like others, for the ones that
take their place get another device or wait. Before anything is evicted, pods are looked
for that nobody would make again, and pods whose emptyDir volumes would be lost.`
	cmd.Example = `  kubectl vernier drain gpu-1/0 --reason 'Xid 48' --timeout 10m
  kubectl vernier drain gpu-1/0 --dry-run`
	f := cmd.Flags()
	f.StringVar(&d.reason, "reason", "", "why, for those who find it cordoned")
	f.BoolVar(&d.force, "force", false, "evict pods without a controller, too: nobody makes them again")
	f.BoolVar(&d.emptyDir, "delete-emptydir-data", false, "evict pods with emptyDir volumes, too: their data is lost")
	f.IntVar(&d.grace, "grace-period", -1, "seconds that a pod has to end; -1 is the pod's own")
	f.DurationVar(&d.timeout, "timeout", 0, "give up after so long; 0 never does")
	return cmd
}

func (d *drainer) drain(ctx context.Context, api client.Client, t target) error {
	uuid, err := d.cordon(ctx, api, t)
	if err != nil {
		return err
	}
	pods, err := d.holders(ctx, api, t.node, uuid)
	if err != nil {
		return err
	}
	if err := d.refusals(pods); err != nil {
		if d.dry != cmdutil.DryRunNone {
			return fmt.Errorf("gpu/%s/%s would be cordoned and nothing evicted: %w", t.node, t.gpu, err)
		}
		return fmt.Errorf("gpu/%s/%s stays cordoned and nothing is evicted: %w", t.node, t.gpu, err)
	}
	if d.dry != cmdutil.DryRunNone {
		return d.rehearse(ctx, t, pods)
	}
	var late <-chan time.Time
	begun := d.now()
	if d.timeout > 0 {
		late = d.after(d.timeout)
	}
	for len(pods) > 0 {
		if err := d.evict(ctx, pods, d.timeout-d.now().Sub(begun)); err != nil {
			return fmt.Errorf("gpu/%s/%s stays cordoned and is not empty: %w", t.node, t.gpu, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("gpu/%s/%s stays cordoned and is not empty after %s: %s still hold slices of it", t.node, t.gpu, d.timeout, strings.Join(names(pods), ", "))
		case <-d.after(drainLook):
		}
		// Pods that were granted slices just before the cordon come in here as well.
		if pods, err = d.holders(ctx, api, t.node, uuid); err != nil {
			return err
		}
	}
	fmt.Fprintf(whole(d.out), "gpu/%s/%s drained\n", t.node, t.gpu)
	return nil
}

// holder is a pod that has slices of the device. pod is nil once it is gone and the
// node has not given its slices back yet.
type holder struct {
	name types.NamespacedName
	uid  types.UID
	pod  *corev1.Pod
}

// holders are the pods with slices of the device, by name.
func (d *drainer) holders(ctx context.Context, api client.Client, node, uuid string) ([]holder, error) {
	l := &v1alpha1.SliceLedger{}
	if err := api.Get(ctx, client.ObjectKey{Name: node}, l); err != nil {
		return nil, explain(err, "sliceledgers."+v1alpha1.Group, "")
	}
	found := map[types.UID]holder{}
	for _, device := range l.Spec.Devices {
		for _, s := range device.Slices {
			if device.UUID == uuid {
				found[s.Pod] = holder{name: podstate.OwnerKey(s.Owner), uid: s.Pod}
			}
		}
	}
	all := slices.SortedFunc(maps.Values(found), func(a, b holder) int { return podstate.CompareKeys(a.name, b.name) })
	for i := range all {
		pod := &corev1.Pod{}
		switch err := api.Get(ctx, all[i].name, pod); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading pod %s: %w", all[i].name, err)
		case pod.UID == all[i].uid:
			all[i].pod = pod
		}
	}
	return all, nil
}

// evictable reports whether it takes an eviction to end the pod. What is held for a
// gated pod is not granted, and goes by itself or is.
func (h *holder) evictable() bool {
	return h.pod != nil && h.pod.DeletionTimestamp == nil && len(h.pod.Spec.SchedulingGates) == 0 && !podstate.Terminal(h.pod)
}

func names(pods []holder) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.name.String())
	}
	return all
}

// refusals says, as kubectl drain does, which pods it takes another flag for.
func (d *drainer) refusals(pods []holder) error {
	var alone, data []holder
	for _, p := range pods {
		if !p.evictable() {
			continue
		}
		if metav1.GetControllerOf(p.pod) == nil {
			alone = append(alone, p)
		}
		if slices.ContainsFunc(p.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
			data = append(data, p)
		}
	}
	var errs []error
	if len(alone) > 0 && !d.force {
		errs = append(errs, fmt.Errorf("cannot evict pods that declare no controller (use --force to override): %s", strings.Join(names(alone), ", ")))
	}
	if len(data) > 0 && !d.emptyDir {
		errs = append(errs, fmt.Errorf("cannot evict pods with local storage (use --delete-emptydir-data to override): %s", strings.Join(names(data), ", ")))
	}
	return errors.Join(errs...)
}

// rehearse says what would be evicted, and what holds slices and needs no eviction; on the
// server's side it asks the API server, which says what a PodDisruptionBudget is against.
func (d *drainer) rehearse(ctx context.Context, t target, pods []holder) error {
	for _, p := range pods {
		if !p.evictable() {
			fmt.Fprintf(whole(d.out), "waiting for the slices of pod %s to be given back%s\n", p.name, dryRunNotes[d.dry])
			continue
		}
		fmt.Fprintf(whole(d.out), "evicting pod %s%s\n", p.name, dryRunNotes[d.dry])
		if d.dry != cmdutil.DryRunServer {
			continue
		}
		helper, err := d.helper(ctx)
		if err != nil {
			return err
		}
		// Once: DeleteOrEvictPods would try again until a PodDisruptionBudget allows it.
		if err := helper.EvictPod(*p.pod, policyv1.SchemeGroupVersion); err != nil {
			return fmt.Errorf("pod %s: %w", p.name, err)
		}
	}
	fmt.Fprintf(whole(d.out), "gpu/%s/%s drained%s\n", t.node, t.gpu, dryRunNotes[d.dry])
	return nil
}

// evict evicts the pods as kubectl drain does, and returns when they are gone. The timeout
// counts where the flag was given.
func (d *drainer) evict(ctx context.Context, pods []holder, timeout time.Duration) error {
	var due []corev1.Pod
	for _, p := range pods {
		if p.evictable() {
			due = append(due, *p.pod)
		}
	}
	if len(due) == 0 {
		return nil
	}
	helper, err := d.helper(ctx)
	if err != nil {
		return err
	}
	if d.timeout > 0 {
		// 0 is no timeout to the helper.
		helper.Timeout = max(timeout, time.Nanosecond)
	}
	return helper.DeleteOrEvictPods(due)
}

func (d *drainer) helper(ctx context.Context) (*drain.Helper, error) {
	api, err := d.clientset()
	if err != nil {
		return nil, err
	}
	return &drain.Helper{
		Ctx: ctx, Client: api, GracePeriodSeconds: d.grace, DryRunStrategy: d.dry,
		EvictErrorRetryDelay: d.evictAgain, Out: whole(d.out), ErrOut: whole(d.errOut),
	}, nil
}
