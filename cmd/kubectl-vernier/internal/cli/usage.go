// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// accountsAtOnce is how many accounts one answer of the API server has: each is up to 0.5 MiB.
const accountsAtOnce = 50

// accounting is what the user asks for.
type accounting struct {
	*command
	since, by string
	prices    []string
	// cluster is that the cluster's prices count, since the user gives none.
	cluster bool
}

// pricesName is the ConfigMap of the chart's value prices, pricesKey what it has them under.
const (
	pricesName = "vernier-prices"
	pricesKey  = "prices"
)

func (c *command) usageCommand() *cobra.Command {
	u := &accounting{command: c}
	cmd := c.sub("usage", "Hours of GPUs that namespaces were granted and have used, and what was free", u.run)
	cmd.Long = `Add up the accounts of all nodes (SliceUsage) over whole hours of UTC. Of each model the rows of
namespaces, (free), (unavailable: cordoned or unhealthy) and (unknown: the node's agent was away) add up
to (total). One GPU-hour is all of a GPU's compute for an hour. USED is measured in slices with a compute
quota and in whole GPUs. Nodes publish every 15 minutes and keep up to eight days.

Without -A the namespaces beside yours are one row, (others). Accounts are cluster-wide: it takes the
cluster role vernier-viewer, bound by a ClusterRoleBinding.`
	cmd.Example = `  kubectl vernier usage -A --since 7d
  kubectl vernier usage -A --prices 'H100=2.50,A100=1.20' -o csv
  kubectl vernier usage --by model`
	f := cmd.Flags()
	f.StringVar(&u.since, "since", "7d", "from how long ago on, such as 12h or 7d; the hour in which that was counts whole")
	f.StringVar(&u.by, "by", "namespace", "a row for each namespace and model, or model only")
	f.StringSliceVar(&u.prices, "prices", nil, "prices of a GPU-hour, MODEL=PRICE, a model by its name or words of it; by default those of the chart")
	completeWith(cmd, "by", "namespace", "model")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		c.output.withCSV = true
		u.cluster = !cmd.Flags().Changed("prices")
	}
	return cmd
}

func (u *accounting) run(ctx context.Context, r client.Reader) error {
	ago, err := days(u.since)
	if err != nil {
		return err
	}
	if u.by != "namespace" && u.by != "model" {
		return fmt.Errorf("--by %q: write namespace or model", u.by)
	}
	prices, err := u.pricesOf(ctx, r)
	if err != nil {
		return err
	}
	of := &view.UsageOf{From: u.now().UTC().Add(-ago).Truncate(time.Hour)}
	if err := u.accounts(ctx, r, of); err != nil {
		return err
	}
	u.say(of, prices)
	rows := of.Rows(u.by == "model", u.ns, prices.Of)
	report := view.UsageReport{List: view.NewList(view.KindUsage, rows), From: metav1.NewTime(of.From), Through: metav1.NewTime(of.Through)}
	return u.output.print(u.out, u.errOut, report, section{
		table: view.UsageTable(rows, len(prices) > 0, u.output.wide() || u.output.format == formatCSV),
		none:  "No usage: no node agent has published an account since then.",
	})
}

// pricesOf are the prices that the user gives, or those of the cluster that the user may read.
func (u *accounting) pricesOf(ctx context.Context, r client.Reader) (view.Prices, error) {
	if !u.cluster {
		return view.ParsePrices("--prices", u.prices)
	}
	var m corev1.ConfigMap
	switch err := r.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: pricesName}, &m); {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, explain(err, "configmaps", v1alpha1.SystemNamespace)
	}
	lines := slices.DeleteFunc(strings.Split(m.Data[pricesKey], "\n"), func(line string) bool { return line == "" })
	return view.ParsePrices("configmap/"+pricesName, lines)
}

// accounts adds up those of all nodes, some at a time.
func (u *accounting) accounts(ctx context.Context, r client.Reader, of *view.UsageOf) error {
	for next := ""; ; {
		var list v1alpha1.SliceUsageList
		err := r.List(ctx, &list, client.Limit(accountsAtOnce), client.Continue(next))
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("%w\naccounts are cluster-wide and name all namespaces: an administrator binds them, and a RoleBinding in a namespace does not; %s. "+
				"Prometheus, where you may query it, has your namespace's in vernier_node_granted_gpu_seconds_total", err, showsLedgers)
		} else if err != nil {
			return explain(err, "sliceusages."+v1alpha1.Group, "")
		}
		for i := range list.Items {
			of.Add(&list.Items[i], u.now())
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

// say says what the figures are of, for people and on stderr.
func (u *accounting) say(of *view.UsageOf, prices view.Prices) {
	err := whole(u.errOut)
	if u.output.forPeople() && of.Nodes > 0 {
		fmt.Fprintf(err, "%s to %s UTC, nodes: %d\n", of.From.Format("2006-01-02 15:04"), of.Through.UTC().Format("2006-01-02 15:04"), of.Nodes)
	}
	if len(of.Later) > 0 {
		fmt.Fprintf(err, "left out: earlier hours of nodes that have no room for them: %s\n", v1alpha1.NamesText(of.Later, maxNamed))
	}
	if len(of.Behind) > 0 {
		fmt.Fprintf(err, "left out: what nodes have not published for an hour; see to their agents: %s\n", v1alpha1.NamesText(of.Behind, maxNamed))
	}
	if names := prices.Unused(of.Models()); len(names) > 0 && !u.cluster {
		fmt.Fprintf(err, "--prices: no usage of %s\n", v1alpha1.NamesText(names, maxNamed))
	}
	free := slices.DeleteFunc(of.Models(), func(model string) bool { _, has := prices.Of(model); return has })
	if len(prices) > 0 && len(free) > 0 {
		from := "--prices"
		if u.cluster {
			from = "configmap/" + pricesName
		}
		fmt.Fprintf(err, "%s: no price for %s\n", from, v1alpha1.NamesText(free, maxNamed))
	}
}

// maxNamed is how many names a line has.
const maxNamed = 5

// days reads a duration that may be in days.
func days(text string) (time.Duration, error) {
	var d time.Duration
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "d"), 10, 16)
	if strings.HasSuffix(text, "d") && err == nil {
		d = time.Duration(n) * 24 * time.Hour
	} else {
		d, err = time.ParseDuration(text)
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("--since %q: write a time such as 12h or 7d", text)
	}
	return d, nil
}
