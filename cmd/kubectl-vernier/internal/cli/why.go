// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/state/podstate"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

func (c *command) whyCommand() *cobra.Command {
	var of string
	cmd := c.sub("why [KIND] NAME", "Why a pod, or the pods of a workload, wait", func(ctx context.Context, r client.Reader) error {
		return c.why(ctx, r, of)
	})
	cmd.Long = `Why a pod waits: its gates, the allocator's last event, what each class of nodes has for
it, what its volumes or its rollout wait for, what the kubelet says of one that does not
start, or why it has failed.

A workload of any kind stands for its pods, which are found by their owner references.
Pods that wait for the same reason are shown together, and so is why the API server
refuses pods that the workload's controller tries to create.`
	cmd.Example = `  kubectl vernier why train-0
  kubectl vernier why deploy/server   # or: why deploy server
  kubectl vernier why job/train -o json`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.RangeArgs(1, 2)(cmd, args); err != nil {
			return fmt.Errorf("name one pod or workload: %w", err)
		}
		of = strings.Join(args, "/")
		return nil
	}
	c.propose(cmd, 1, func(ctx context.Context, r client.Reader) (names []string, err error) {
		pods, err := unbound(ctx, r, c.ns)
		for i := range pods {
			if podstate.Gated(&pods[i]) {
				names = append(names, pods[i].Name)
			}
		}
		return names, err
	})
	return cmd
}

func (c *command) why(ctx context.Context, r client.Reader, of string) error {
	ns := c.ns
	if ns == "" {
		return errors.New("why is about one pod or workload: say its namespace with -n instead of -A")
	}
	kind, name, named := strings.Cut(of, "/")
	if !named {
		kind, name = "pod", of
	}
	work, err := &workload{}, error(nil)
	if slices.Contains([]string{"pod", "pods", "po"}, kind) {
		pod := &corev1.Pod{}
		if err := r.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, pod); apierrors.IsNotFound(err) {
			return c.whyGone(ctx, ns, name)
		} else if err != nil {
			return explain(err, "pods", ns)
		}
		work.pods = []corev1.Pod{*pod}
	} else if work, err = c.findWorkload(ctx, r, of); err != nil {
		return err
	}
	from, err := c.evidence(ctx, r, work.pods)
	if err != nil {
		return err
	}
	if err := c.warnOfPriority(ctx, r, work.pods); err != nil {
		return err
	}
	pods, refused := view.Why(work.pods, from), view.Refusals(work.pods, work.failures)
	if !c.output.forPeople() {
		return c.output.print(c.out, c.errOut, view.NewReasonList(pods, refused))
	}
	out := whole(c.out)
	groups := view.Group(pods)
	if work.object != "" {
		fmt.Fprintf(out, "%s in namespace %s: %s\n", work.object, ns, view.Summary(pods))
		for _, f := range refused {
			fmt.Fprintf(out, "%s cannot create pods: %s\n%s: %s.\n", f.Object, oneLine(f.Message), f.Cause, f.Cause.Remedy())
		}
	} else if len(groups) == 0 {
		groups = []view.Alike{{Reasoned: pods[0], Pods: 1}}
	}
	for i, g := range groups {
		if i > 0 || work.object != "" {
			fmt.Fprintln(out)
		}
		if err := c.printGroup(out, g); err != nil {
			return err
		}
	}
	return nil
}

// whyGone says what the allocator's events say of a pod that is gone.
func (c *command) whyGone(ctx context.Context, ns, name string) error {
	events, err := c.events(ctx, ns, fields.Set{eventlist.FieldSource: eventSource, eventlist.FieldKind: "Pod", eventlist.FieldName: name}.AsSelector())
	if err != nil {
		return err
	}
	gone, found := view.Gone(ns, name, events)
	if !found {
		return fmt.Errorf("there is no pod %s in namespace %s, and no event of Vernier names one. Events expire, after an hour by default; -n NAME asks in another namespace", name, ns)
	}
	if !c.output.forPeople() {
		return c.output.print(c.out, c.errOut, view.NewReasonList([]view.Reasoned{gone}, nil))
	}
	return c.printGroup(whole(c.out), view.Alike{Reasoned: gone, Pods: 1})
}

// warnOfPriority names, on stderr, the PriorityClasses above 0 of the pods that no quota of the namespace bounds.
func (c *command) warnOfPriority(ctx context.Context, r client.Reader, pods []corev1.Pod) error {
	if !slices.ContainsFunc(pods, view.GoesFirst) {
		return nil
	}
	quotas, readable, err := c.quotas(ctx, r)
	if err != nil || !readable {
		return err
	}
	for _, class := range view.UnboundedClasses(pods, quotas) {
		fmt.Fprintf(whole(c.errOut), "warning: PriorityClass %s is above 0, and no ResourceQuota of namespace %s is scoped to it: each pod there may use it, and go before those of the team that do not\n", class, c.ns)
	}
	return nil
}

func (c *command) printGroup(out io.Writer, g view.Alike) error {
	fmt.Fprintln(out, oneLine(g.Heading()))
	if g.Reason != nil && g.Reason.Reason != model.ReasonPreempted && !strings.Contains(g.State, g.Reason.Message) { // which is the heading
		fmt.Fprintf(out, "The allocator's last event, %s: %s\n", view.Ago(c.now(), g.Reason.Seen), oneLine(g.Reason.Message))
	}
	if g.Reserved != nil {
		fmt.Fprintf(out, "Room for it, as said %s: %s\n", view.Ago(c.now(), g.Reserved.Seen), oneLine(g.Reserved.At(c.now())))
	}
	for _, hint := range g.Hints {
		fmt.Fprintln(out, oneLine(hint))
	}
	if help := g.Cause.Remedy(); help != "" {
		fmt.Fprintf(out, "%s: %s.\n", g.Cause, help)
	}
	if len(g.Classes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return c.output.print(c.out, c.errOut, nil, section{table: view.FitTable(g.Classes)})
}

// oneLine: messages of others may have line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// nodesByName are the nodes. Who may not read them is shown nodes that the pod may not go to, too.
func nodesByName(ctx context.Context, r client.Reader) map[string]*corev1.Node {
	var nodes corev1.NodeList
	if r.List(ctx, &nodes) != nil {
		return nil
	}
	named := make(map[string]*corev1.Node, len(nodes.Items))
	for i := range nodes.Items {
		named[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return named
}

// evidence reads what Why reasons from: of the ledgers and events that may say something
// of the pods.
func (c *command) evidence(ctx context.Context, r client.Reader, pods []corev1.Pod) (view.Evidence, error) {
	from := view.Evidence{Now: c.now(), Room: c.room(ctx, r)}
	ledgers, readable, err := readableLedgers(ctx, r)
	if err != nil {
		return from, err
	}
	if !readable {
		c.leftOut("what nodes have for the pod, and whether its node is ready")
	}
	from.Ledgers = ledgers
	if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return podstate.Gated(&p) }) {
		from.Nodes = nodesByName(ctx, r)
	}
	if from.Classes, err = gpuClasses(ctx, r); err != nil {
		return from, err
	}
	if from.Verdicts, err = c.verdicts(ctx, c.ns); err != nil {
		return from, err
	}
	if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending }) {
		from.Kubelet, err = c.events(ctx, c.ns, fields.Set{eventlist.FieldSource: "kubelet", eventlist.FieldKind: "Pod", eventlist.FieldType: corev1.EventTypeWarning}.AsSelector())
	}
	if err != nil {
		return from, err
	}
	return from, c.around(ctx, r, pods, &from)
}
