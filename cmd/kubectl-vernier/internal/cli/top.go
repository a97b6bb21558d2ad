// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// agentLabels are those of the node agents' pods, metricsPort where they serve.
var agentLabels = client.MatchingLabels{"app.kubernetes.io/name": "vernier", "app.kubernetes.io/component": "node"}

const metricsPort = 9400

// scraper reads the metrics of one node agent.
type scraper func(ctx context.Context, pod string) ([]byte, error)

// proxied reads them through the API server, which is all that a user can reach.
func (c *command) proxied(ctx context.Context, pod string) ([]byte, error) {
	cfg, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return kube.CoreV1().Pods(v1alpha1.SystemNamespace).ProxyGet("http", pod, strconv.Itoa(metricsPort), "/metrics", nil).DoRaw(ctx)
}

// top asks every node agent; one that does not answer is said and left out.
func (c *command) top(ctx context.Context, r client.Reader) error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	var agents corev1.PodList
	if err := r.List(ctx, &agents, client.InNamespace(v1alpha1.SystemNamespace), agentLabels); err != nil {
		return explain(err, "pods", v1alpha1.SystemNamespace)
	}
	var uses []view.Use
	for i := range agents.Items {
		text, err := c.scrape(ctx, agents.Items[i].Name)
		var of []view.Use
		if err == nil {
			of, err = view.Uses(text)
		}
		if err != nil {
			fmt.Fprintf(c.errOut, "node %s is left out: %v (it takes the permission to get pods/proxy in namespace %s)\n",
				agents.Items[i].Spec.NodeName, err, v1alpha1.SystemNamespace)
			continue
		}
		uses = append(uses, of...)
	}
	uses = slices.DeleteFunc(uses, func(u view.Use) bool { return ns != "" && u.Namespace != ns })
	view.SortUses(uses)
	return c.output.print(c.out, c.errOut, view.NewList(view.KindUses, uses),
		section{table: view.UseTable(uses), none: "No container uses a slice " + in(ns) + "."})
}
