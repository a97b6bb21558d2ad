// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// cordoner is the flags of cordon, uncordon and drain.
type cordoner struct {
	*command
	reason string
	dry    cmdutil.DryRunStrategy
}

func (c *command) cordonCommand() *cobra.Command {
	o := &cordoner{command: c}
	cmd := o.sub("cordon NODE/GPU...", "Grant nothing new on devices", func(ctx context.Context, api client.Client, t target) error {
		_, err := o.cordon(ctx, api, t)
		return err
	})
	cmd.Long = `Grant nothing new on devices until they are uncordoned.

What is granted on them stays, runs, and may be started again. The ledger keeps the
cordon with your name and reason, over restarts of every part; it is of the device, and
not of the one that takes its place.`
	cmd.Example = "  kubectl vernier cordon gpu-1/0 gpu-1/1 --reason 'fans to be replaced'"
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for those who find it cordoned")
	return cmd
}

func (c *command) uncordonCommand() *cobra.Command {
	o := &cordoner{command: c}
	cmd := o.sub("uncordon NODE/GPU...", "Grant on devices again", o.uncordon)
	cmd.Long = `Take a cordon off devices. A device that is unhealthy still gets nothing until it has
recovered: that is the node agent's to say.`
	return cmd
}

// sub is a command that does something to each of the devices that it is given.
func (o *cordoner) sub(use, short string, do func(context.Context, client.Client, target) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, SilenceUsage: true, SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errNoDevice
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.dry, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
				return err
			}
			var targets []target
			for _, arg := range args {
				t, err := parseTarget(arg)
				if err != nil {
					return err
				}
				targets = append(targets, t)
			}
			api, err := o.connect()
			if err != nil {
				return err
			}
			for _, t := range targets {
				if err := do(cmd.Context(), api, t); err != nil {
					return err
				}
			}
			return nil
		},
	}
	o.propose(cmd, math.MaxInt, deviceNames)
	cmdutil.AddDryRunFlag(cmd)
	completeWith(cmd, "dry-run", "none", "client", "server")
	return cmd
}

// deviceNames are the devices as cordon takes them.
func deviceNames(ctx context.Context, r client.Reader) (names []string, err error) {
	all, err := ledgers(ctx, r)
	for _, l := range all {
		for _, d := range l.Status.Devices {
			names = append(names, fmt.Sprintf("%s/%d", l.Name, d.Index))
		}
	}
	return names, err
}

// cordon cordons a device and returns its UUID.
func (o *cordoner) cordon(ctx context.Context, api client.Client, t target) (uuid string, err error) {
	by := o.whoami(ctx, api)
	uuid, changed, err := o.edit(ctx, api, t, func(l *v1alpha1.SliceLedger, uuid string) bool {
		if l.Spec.Cordon(uuid) != nil {
			return false
		}
		l.Spec.Cordons = append(l.Spec.Cordons, v1alpha1.Cordon{UUID: uuid, By: by, Reason: o.reason, Since: metav1.NewTime(o.now())})
		return true
	})
	return uuid, o.say(err, t, uuid, changed, "cordoned")
}

func (o *cordoner) uncordon(ctx context.Context, api client.Client, t target) error {
	uuid, changed, err := o.edit(ctx, api, t, func(l *v1alpha1.SliceLedger, uuid string) bool {
		before := len(l.Spec.Cordons)
		l.Spec.Cordons = slices.DeleteFunc(l.Spec.Cordons, func(c v1alpha1.Cordon) bool { return c.UUID == uuid })
		return len(l.Spec.Cordons) != before
	})
	return o.say(err, t, uuid, changed, "uncordoned")
}

// edit changes the cordons of a ledger by compare-and-swap: the allocator writes its
// spec as well.
func (o *cordoner) edit(ctx context.Context, api client.Client, t target, change func(*v1alpha1.SliceLedger, string) bool) (uuid string, changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		l, found, err := t.find(ctx, api)
		if err != nil {
			return err
		}
		uuid = found
		known := l.DeepCopy()
		if changed = change(l, uuid); !changed || o.dry == cmdutil.DryRunClient {
			return nil
		}
		var options []client.PatchOption
		if o.dry == cmdutil.DryRunServer {
			options = append(options, client.DryRunAll)
		}
		return api.Patch(ctx, l, client.MergeFromWithOptions(known, client.MergeFromWithOptimisticLock{}), options...)
	})
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w\nan administrator lets you by "+
			"`kubectl create clusterrolebinding NAME --clusterrole=vernier-operator --user=YOU`", err)
	}
	return uuid, changed, err
}

// say prints what became of a device, in kubectl's words.
func (o *cordoner) say(err error, t target, uuid string, changed bool, done string) error {
	if err != nil {
		return err
	}
	if !changed {
		done = "already " + done
	}
	fmt.Fprintf(whole(o.out), "gpu/%s/%s (%s) %s%s\n", t.node, t.gpu, uuid, done, dryRunNotes[o.dry])
	return nil
}

// whoami is what the API server calls the caller; empty where it does not say.
func (o *cordoner) whoami(ctx context.Context, api client.Client) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := api.Create(ctx, review); err != nil {
		return ""
	}
	name := review.Status.UserInfo.Username
	return strings.ToValidUTF8(name[:min(len(name), maxBy)], "")
}

// maxBy is what the ledger takes as a name.
const maxBy = 253
