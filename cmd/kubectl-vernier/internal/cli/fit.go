// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/asked"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/manifest"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
)

func (c *command) fitCommand() *cobra.Command {
	e := &explainer{command: c}
	cmd := c.sub("fit -f FILE", "Whether the pods in manifests would find room now, and where, without creating them", e.fit)
	cmd.Long = `Whether each pod in manifests would find room now, and where, without creating it.
Each is looked at by itself. Room is what the ledgers leave; what the scheduler says of
nodes (taints, affinities, CPU) is not asked, and the allocator may choose another of
the nodes with room.

The exit status is 1 where a pod would wait or be refused.`
	cmd.Example = "  kubectl vernier fit -f pod.yaml --dialects all"
	e.addFlags(cmd)
	return cmd
}

func (e *explainer) fit(ctx context.Context, r client.Reader) error {
	dialects, err := e.settings.Set()
	if err != nil {
		return err
	}
	pods, err := e.read()
	if err != nil {
		return err
	}
	all, err := ledgers(ctx, r)
	if err != nil {
		return err
	}
	reader := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects})
	var fits []view.Fitted
	var sections []section
	for _, pod := range pods {
		one, err := fitted(reader, pod, all)
		if err != nil {
			return fmt.Errorf("%s: %w", pod.Object, err)
		}
		fits = append(fits, one)
		sections = append(sections, section{title: one.Heading(), table: view.FitTable(one.Classes), none: "No room is looked for."})
	}
	if len(sections) == 1 && e.output.forPeople() {
		fmt.Fprintln(whole(e.out), sections[0].title)
	}
	if err := e.output.print(e.out, e.errOut, view.NewList(view.KindFits, fits), sections...); err != nil {
		return err
	}
	unfit := 0
	for _, f := range fits {
		if f.Verdict == view.VerdictRefused || f.Verdict == view.VerdictAdmitted && f.Room() == 0 {
			unfit++
		}
	}
	if unfit > 0 {
		return fmt.Errorf("%d of %d pods would wait or be refused", unfit, len(fits))
	}
	return nil
}

// fitted reads a pod as admission does and looks for room for it.
func fitted(reader *podtemplate.Reader, from manifest.Pod, all []v1alpha1.SliceLedger) (view.Fitted, error) {
	read, unreadable := reader.Read("", from.JSON)
	f := view.Fitted{ExplainedPod: view.Explain(from, read, unreadable), Classes: []view.NodeClass{}}
	if f.Verdict != view.VerdictAdmitted {
		return f, nil
	}
	pod, err := read.Admitted(from.JSON)
	if err != nil {
		return f, err
	}
	demand, _, err := asked.Of(pod)
	if err == nil {
		f.Classes = view.Fit(demand, all)
	}
	return f, err
}
