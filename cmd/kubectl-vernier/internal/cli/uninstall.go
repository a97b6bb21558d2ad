// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// uninstaller takes Vernier off a cluster, in steps that each may be repeated.
type uninstaller struct {
	*command
	yes, wait bool
	timeout   time.Duration
	// late is when the timeout is over.
	late <-chan time.Time
}

func (c *command) uninstallCommand() *cobra.Command {
	u := &uninstaller{command: c}
	cmd := c.sub("uninstall", "Take Vernier off the cluster; without --yes, say what that would do", func(ctx context.Context, r client.Reader) error {
		api, is := r.(client.Client)
		if !is {
			return errors.New("the client cannot write")
		}
		return u.uninstall(ctx, api)
	})
	cmd.Long = `Take Vernier off the cluster: admission first, then the gates of pods that wait, the
namespace ` + v1alpha1.SystemNamespace + `, cluster roles and definitions, and what nodes advertise.

Without --yes nothing is changed. While slices are in use it refuses, unless --wait has it wait for
their pods to end. It may be run again wherever it was interrupted. It takes cluster-admin.`
	cmd.Example = `  kubectl vernier uninstall
  kubectl vernier uninstall --yes`
	f := cmd.Flags()
	f.BoolVar(&u.yes, "yes", false, "do it")
	f.BoolVar(&u.wait, "wait", false, "wait until no slice is in use")
	f.DurationVar(&u.timeout, "timeout", 5*time.Minute, "give up after so long; 0 never does")
	return cmd
}

// names are the cluster-wide objects of the chart that carry no label of it.
var (
	clusterRoles = []string{"vernier-access-review", "vernier-allocator", "vernier-check", "vernier-fit", "vernier-metrics-reader", "vernier-node", "vernier-operator", "vernier-viewer", "vernier-webhook"}
	roleBindings = []string{"vernier-access-review", "vernier-allocator", "vernier-metrics", "vernier-node", "vernier-webhook"}
	definitions  = []string{"gpuclasses." + v1alpha1.Group, "sliceadvices." + v1alpha1.Group, "sliceledgers." + v1alpha1.Group, "sliceusages." + v1alpha1.Group, "tides." + v1alpha1.Group}
)

// isLeft is what no step takes away.
const isLeft = "left: the labels vernier.dev/inject and vernier.dev/gpu-node, your own bindings and quotas, containerd's settings, " +
	"and on the nodes /var/lib/vernier and /var/run/cdi/vernier.dev-gpu.json"

func (u *uninstaller) uninstall(ctx context.Context, api client.Client) error {
	if u.timeout > 0 {
		u.late = u.after(u.timeout)
	}
	used := u.unused(ctx, api)
	if used != nil && u.yes {
		return used
	}
	for _, step := range []func(context.Context, client.Client) error{u.admission, u.gates, u.namespace, u.clusterWide, u.capacity} {
		if err := step(ctx, api); err != nil {
			return err
		}
	}
	fmt.Fprintln(whole(u.out), isLeft)
	if !u.yes {
		fmt.Fprintln(whole(u.errOut), "nothing was changed: --yes does it")
	}
	return used
}

// say prints what is done, or would be.
func (u *uninstaller) say(format string, args ...any) {
	suffix := ""
	if !u.yes {
		suffix = " (dry run)"
	}
	fmt.Fprintln(whole(u.out), oneLine(fmt.Sprintf(format, args...))+suffix)
}

// until waits for the condition, which is looked at each second.
func (u *uninstaller) until(ctx context.Context, what string, is func() (bool, error)) error {
	for {
		if done, err := is(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-u.late:
			return fmt.Errorf("after %s: %s. Run it again: it goes on from here", u.timeout, what)
		case <-u.after(time.Second):
		}
	}
}

// unused refuses, or waits, while pods have slices. Those of pods that are gone hold up nobody: where Vernier is
// broken, nobody takes them out of the ledgers.
func (u *uninstaller) unused(ctx context.Context, api client.Client) error {
	var owners []string
	look := func() (bool, error) {
		var all v1alpha1.SliceLedgerList
		if err := api.List(ctx, &all); gone(err) {
			return true, nil
		} else if err != nil {
			return false, explain(err, "sliceledgers."+v1alpha1.Group, "")
		}
		pods, err := podsIn(ctx, api, "")
		if err != nil {
			return false, err
		}
		have := map[types.UID]string{}
		for i := range all.Items {
			maps.Copy(have, grants.Pods(&all.Items[i]))
		}
		owners = nil
		for i := range pods {
			if owner, has := have[pods[i].UID]; has && !podstate.Terminal(&pods[i]) {
				owners = append(owners, owner)
			}
		}
		slices.Sort(owners)
		return len(owners) == 0, nil
	}
	none, err := look()
	if none || err != nil {
		return err
	}
	inUse := fmt.Sprintf("%d pod(s) have slices: %s", len(owners), v1alpha1.NamesText(owners, 5))
	switch {
	case u.wait && u.yes:
		fmt.Fprintln(whole(u.errOut), "waits for pods to end: "+inUse)
		return u.until(ctx, inUse, look)
	case u.wait:
		u.say("waits until these have ended: %s", inUse)
		return nil
	}
	return fmt.Errorf("%s. Their containers start again only with the node agent: delete them, or take the limits out of their workloads. --wait waits for them", inUse)
}

// gone reports whether the kind, or the object, is not there any more.
func gone(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// admission is first: its policies let nobody but the allocator take a gate off.
func (u *uninstaller) admission(ctx context.Context, api client.Client) error {
	for _, list := range []client.ObjectList{&admissionregistrationv1.MutatingWebhookConfigurationList{}, &admissionregistrationv1.ValidatingWebhookConfigurationList{},
		&admissionregistrationv1.ValidatingAdmissionPolicyBindingList{}, &admissionregistrationv1.ValidatingAdmissionPolicyList{}} {
		if err := api.List(ctx, list, client.MatchingLabels{"app.kubernetes.io/part-of": "vernier"}); err != nil {
			return fmt.Errorf("listing %T: %w", list, err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := u.remove(ctx, api, o.(client.Object)); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove deletes an object that may be gone.
func (u *uninstaller) remove(ctx context.Context, api client.Client, o client.Object) error {
	kinds, _, err := api.Scheme().ObjectKinds(o)
	if err != nil {
		return err
	}
	name := kinds[0].Kind + "/" + o.GetName()
	if err := api.Get(ctx, client.ObjectKeyFromObject(o), o); gone(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	if o.GetDeletionTimestamp() != nil {
		return nil // it goes
	}
	if u.yes {
		if err := api.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", name, err)
		}
	}
	u.say("%s deleted", name)
	return nil
}

var offGate = fmt.Appendf(nil, `{"spec":{"schedulingGates":[{"$patch":"delete","name":%q}]}}`, v1alpha1.Gate)

// gates takes ours off the pods that wait. The policies hold for some seconds after they are deleted.
func (u *uninstaller) gates(ctx context.Context, api client.Client) error {
	pods, err := unbound(ctx, api, "")
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		if !podstate.Gated(pod) {
			continue
		}
		if u.yes {
			var refused error
			if err := u.until(ctx, "the gate of pod "+podstate.KeyOf(pod).String()+" is still kept", func() (bool, error) {
				refused = client.IgnoreNotFound(api.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, offGate)))
				if apierrors.IsInvalid(refused) || apierrors.IsForbidden(refused) {
					return false, nil
				}
				return true, refused
			}); err != nil {
				return errors.Join(err, refused)
			}
		}
		u.say("Pod/%s in namespace %s: gate taken off", pod.Name, pod.Namespace)
	}
	return nil
}

// namespace takes away the parts that run, and waits: an agent would advertise its node again.
func (u *uninstaller) namespace(ctx context.Context, api client.Client) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
	if err := u.remove(ctx, api, ns); err != nil || !u.yes {
		return err
	}
	return u.until(ctx, "namespace "+ns.Name+" is not gone yet", func() (bool, error) {
		err := api.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		return gone(err), client.IgnoreNotFound(err)
	})
}

func (u *uninstaller) clusterWide(ctx context.Context, api client.Client) error {
	var all []client.Object
	for _, name := range roleBindings {
		all = append(all, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range clusterRoles {
		all = append(all, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range definitions {
		all = append(all, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, o := range all {
		if err := u.remove(ctx, api, o); err != nil {
			return err
		}
	}
	return nil
}

// capacity takes our resources out of what nodes advertise, and their GPUs' labels.
func (u *uninstaller) capacity(ctx context.Context, api client.Client) error {
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return explain(err, "nodes", "")
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		labels := map[string]any{}
		for _, key := range []string{v1alpha1.LabelGPUModel, v1alpha1.LabelGPUCount, v1alpha1.LabelGPUMemMiB} {
			if _, has := node.Labels[key]; has {
				labels[key] = nil
			}
		}
		if u.yes && len(labels) > 0 {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
			if err != nil {
				return err
			}
			if err := api.Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
		ours := v1alpha1.Ours(node.Status.Capacity)
		if len(ours) == 0 {
			continue
		}
		none := map[corev1.ResourceName]any{}
		for _, name := range ours {
			none[name] = nil
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": none}})
		if err != nil {
			return err
		}
		if u.yes {
			if err := api.Status().Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
		u.say("Node/%s advertises no GPU shares any more", node.Name)
	}
	return nil
}
