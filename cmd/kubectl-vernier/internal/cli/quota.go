// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// quotaName is the ResourceQuota of a namespace that the command writes.
const quotaName = "vernier-gpus"

// limitPolicy refuses the shares that the quota does not count.
const limitPolicy = "vernier-limits"

// limit is the flags of quota.
type limit struct {
	*command
	gpus, memory string
	dry          cmdutil.DryRunStrategy
}

func (c *command) quotaCommand() *cobra.Command {
	o := &limit{command: c}
	cmd := &cobra.Command{
		Use: "quota NAMESPACE --gpus NUMBER", Short: "Limit the GPUs of a namespace", SilenceUsage: true, SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one namespace, such as: kubectl vernier quota team-a --gpus 2.5")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := o.output.validate(); err != nil {
				return err
			}
			if o.dry, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0])
		},
	}
	cmd.Long = `Limit what the pods of a namespace have of GPUs together, in whatever words they ask.

It writes the ResourceQuota ` + quotaName + `. Kubernetes counts compute and memory apart, and
memory in percent apart from memory in MiB: so all pods of the namespace ask for memory
in the one unit that --memory says, and those in the other are refused. MiB are counted
by the GPU with the least memory that there is now.`
	cmd.Example = `  kubectl vernier quota team-a --gpus 2.5
  kubectl vernier quota team-a --gpus 2.5 --memory mib --dry-run=client -o yaml`
	cmd.Flags().StringVar(&o.gpus, "gpus", "", "how many GPUs, to a hundredth")
	cmd.Flags().StringVar(&o.memory, "memory", view.MemoryPercent, "the unit in which pods ask for memory: percent, which is also that of pods that say compute only, or mib")
	cmdutil.AddDryRunFlag(cmd)
	completeWith(cmd, "dry-run", "none", "client", "server")
	completeWith(cmd, "memory", view.MemoryPercent, view.MemoryMiB)
	return cmd
}

func (o *limit) run(ctx context.Context, namespace string) error {
	gpus, err := parseGPUs(o.gpus)
	if err != nil {
		return err
	}
	if o.memory != view.MemoryPercent && o.memory != view.MemoryMiB {
		return fmt.Errorf("--memory %q: write %s or %s", o.memory, view.MemoryPercent, view.MemoryMiB)
	}
	api, err := o.connect()
	if err != nil {
		return err
	}
	all, err := ledgers(ctx, api)
	if err != nil {
		return err
	}
	hard, says, err := view.Limit(gpus, o.memory, all)
	if err != nil {
		return err
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: quotaName,
		Labels: map[string]string{v1alpha1.LabelGPULimit: gpus.GPUsText()}}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	show := func(out io.Writer) error {
		quota.TypeMeta, quota.ManagedFields = metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}, nil
		return o.output.print(out, o.errOut, quota)
	}
	if !o.output.forPeople() {
		if err := show(io.Discard); err != nil { // a template may fail: not after the write
			return err
		}
	}
	if err := o.warnOfPolicy(ctx, api); err != nil {
		return err
	}
	done, err := o.write(ctx, api, quota)
	if err != nil {
		return explainWrite(err)
	}
	if !o.output.forPeople() {
		return show(o.out)
	}
	out := whole(o.out)
	fmt.Fprintf(out, "resourcequota/%s %s%s\n", quotaName, done, dryRunNotes[o.dry])
	for _, line := range says {
		fmt.Fprintln(out, line)
	}
	return nil
}

// warnOfPolicy says on stderr that no policy holds the limit, as with an older release in the cluster.
// Most users may not read policies.
func (o *limit) warnOfPolicy(ctx context.Context, api client.Reader) error {
	err := api.Get(ctx, client.ObjectKey{Name: limitPolicy}, &admissionregistrationv1.ValidatingAdmissionPolicy{})
	if apierrors.IsNotFound(err) {
		fmt.Fprintf(whole(o.errOut), "warning: pods may have shares that the quota does not count: the cluster has no ValidatingAdmissionPolicy %s. Upgrade Vernier there\n", limitPolicy)
	} else if !apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// write makes the quota, or sets the limit of one that there is, and says which.
func (o *limit) write(ctx context.Context, api client.Client, quota *corev1.ResourceQuota) (done string, err error) {
	if o.dry == cmdutil.DryRunClient {
		return "created", nil
	}
	if o.dry == cmdutil.DryRunServer {
		api = client.NewDryRunClient(api)
	}
	is := &corev1.ResourceQuota{}
	if err := api.Get(ctx, client.ObjectKeyFromObject(quota), is); apierrors.IsNotFound(err) {
		return "created", api.Create(ctx, quota)
	} else if err != nil {
		return "", err
	}
	known := is.DeepCopy()
	is.Spec = quota.Spec
	metav1.SetMetaDataLabel(&is.ObjectMeta, v1alpha1.LabelGPULimit, quota.Labels[v1alpha1.LabelGPULimit])
	done = "configured"
	if equality.Semantic.DeepEqual(is, known) {
		done = "unchanged"
	} else if err = api.Patch(ctx, is, client.MergeFrom(known)); err != nil {
		return "", err
	}
	is.DeepCopyInto(quota)
	return done, nil
}

// explainWrite says who writes quotas.
func explainWrite(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w\nquotas are written by administrators: the cluster roles admin and edit have no right to", err)
	}
	return err
}

// parseGPUs reads a number of GPUs to a hundredth.
func parseGPUs(text string) (v1alpha1.Percent, error) {
	whole, part, _ := strings.Cut(text, ".")
	n, err := strconv.ParseUint(whole+(part + "00")[:2], 10, 31)
	if err != nil || n == 0 || len(part) > 2 {
		return 0, fmt.Errorf("--gpus %q: write a number of GPUs, to a hundredth, such as 2.5 or 0.25", text)
	}
	return v1alpha1.Percent(n), nil
}
