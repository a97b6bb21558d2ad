// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

func (c *command) whyCommand() *cobra.Command {
	var name string
	cmd := c.sub("why POD", "Why a pod waits, class of nodes by class of nodes", func(ctx context.Context, r client.Reader) error {
		return c.why(ctx, r, name)
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(1)(cmd, args); err != nil {
			return fmt.Errorf("name one pod: %w", err)
		}
		kind, of, said := strings.Cut(args[0], "/")
		switch {
		case !said:
			name = args[0]
		case slices.Contains([]string{"pod", "pods", "po"}, kind):
			name = of
		default:
			return fmt.Errorf("%s is not a pod: name one of its pods", args[0])
		}
		return nil
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.waitingNames(cmd.Context(), args), cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// waitingNames are what the shell proposes; nothing where anything fails.
func (c *command) waitingNames(ctx context.Context, args []string) []string {
	r, err := c.connect()
	ns, badNamespace := c.namespace()
	if err != nil || badNamespace != nil || len(args) > 0 {
		return nil
	}
	pods, err := unbound(ctx, r, ns)
	if err != nil {
		return nil
	}
	var names []string
	for _, w := range view.Waiting(pods, nil) {
		names = append(names, w.Pod)
	}
	return names
}

func (c *command) why(ctx context.Context, r client.Reader, name string) error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	if ns == "" {
		return errors.New("why is about one pod: say its namespace with -n instead of -A")
	}
	pod := &corev1.Pod{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, pod); apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no pod %s in namespace %s: -n NAME asks in another one", name, ns)
	} else if err != nil {
		return explain(err, "pods", ns)
	}
	all, err := ledgers(ctx, r)
	if err != nil {
		return err
	}
	events, err := verdicts(ctx, r, ns)
	if err != nil {
		return err
	}
	reasoned := view.Why(pod, events, all)
	if c.output.forPeople() {
		fmt.Fprintf(whole(c.out), "Pod %s/%s: %s\n", ns, name, reasoned.State)
		if reasoned.Reason != nil {
			fmt.Fprintf(whole(c.out), "The allocator's last word: %s\n", strings.Join(strings.Fields(reasoned.Reason.Message), " "))
		}
		if len(reasoned.Classes) == 0 {
			return nil
		}
		fmt.Fprintln(whole(c.out))
	}
	return c.output.print(c.out, c.errOut, view.NewList(view.KindReasons, []view.Reasoned{reasoned}),
		section{table: view.FitTable(reasoned.Classes), none: noDevices})
}
