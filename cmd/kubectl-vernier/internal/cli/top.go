// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// agentLabels are those of the node agents' pods.
var agentLabels = client.MatchingLabels{"app.kubernetes.io/name": "vernier", "app.kubernetes.io/component": "node"}

// agentsAtOnce is how many agents are asked at a time, and agentPatience how long each is
// waited for: one whose driver hangs may never answer.
const (
	agentsAtOnce  = 16
	agentPatience = 15 * time.Second
)

const allowsTop = "the role vernier-top allows it: `kubectl -n " + v1alpha1.SystemNamespace + " create rolebinding NAME --role=vernier-top --user=YOU`"

// scraper reads the metrics of one node agent.
type scraper func(ctx context.Context, pod string) ([]byte, error)

// top asks every node agent; one that does not answer is said and left out.
func (c *command) top(ctx context.Context, r client.Reader) error {
	var agents corev1.PodList
	if err := r.List(ctx, &agents, client.InNamespace(v1alpha1.SystemNamespace), agentLabels); apierrors.IsForbidden(err) {
		return fmt.Errorf("%w\n%s", err, allowsTop)
	} else if err != nil {
		return explain(err, "pods", v1alpha1.SystemNamespace)
	}
	if len(agents.Items) == 0 {
		return errors.New("no pod of the node agent is in namespace " + v1alpha1.SystemNamespace +
			", and top asks these what is used: kubectl -n " + v1alpha1.SystemNamespace + " get daemonset vernier-node")
	}
	of, failed := make([][]model.Use, len(agents.Items)), make([]error, len(agents.Items))
	var asking errgroup.Group
	asking.SetLimit(agentsAtOnce)
	for i := range agents.Items {
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, agentPatience)
			defer cancel()
			text, err := c.scrape(ctx, agents.Items[i].Name)
			switch {
			case err == nil:
				of[i], err = model.Uses(text)
			case errors.Is(err, context.DeadlineExceeded):
				err = fmt.Errorf("no answer within %s", agentPatience)
			}
			failed[i] = err
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	for i, err := range failed {
		if err != nil {
			remedy := ""
			if strings.Contains(err.Error(), "forbidden") { // a refused tunnel has no other type
				remedy = "; " + allowsTop
			}
			fmt.Fprintf(c.errOut, "node %s is left out: %v%s\n", agents.Items[i].Spec.NodeName, err, remedy)
		}
	}
	uses := slices.Concat(of...)
	uses = slices.DeleteFunc(uses, func(u model.Use) bool { return c.ns != "" && u.Namespace != c.ns })
	model.SortUses(uses)
	uses, err := ofPods(ctx, c, r, uses, func(u model.Use) types.NamespacedName {
		return types.NamespacedName{Namespace: u.Namespace, Name: u.Pod}
	})
	if err != nil {
		return err
	}
	return list(c, view.KindUses, uses, func(all []model.Use) section {
		return section{table: view.UseTable(all), none: "No container uses a slice " + c.where() + "."}
	})
}
