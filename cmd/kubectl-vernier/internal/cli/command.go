// SPDX-License-Identifier: Apache-2.0

// Package cli owns the command line of `kubectl vernier`: flags, what is read
// from the API server, and how it is printed. The contents of the tables are package
// view's. Some verbs write: cordon, uncordon, drain, quota and uninstall. Everything else only
// reads. It never writes a grant.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/feasible"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/api/version"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// command is what all subcommands share.
type command struct {
	flags         *genericclioptions.ConfigFlags
	output        output
	allNamespaces bool
	watch         bool
	// selector, sortBy and names are of the one command that runs, and so is ns, the namespace
	// to show; it is empty for all.
	selector, sortBy, ns string
	names                []string
	// saidLeftOut: stderr says already what the user may not see.
	saidLeftOut bool
	// connect is replaced by tests, and so is now.
	connect func() (client.Client, error)
	// clientset reads events, and evicts pods; every eviction that was refused is tried again
	// after evictAgain.
	clientset  func() (kubernetes.Interface, error)
	evictAgain time.Duration
	scrape     scraper
	// filters are the scheduler's, filled from the cluster; the error says why they cannot be asked.
	filters     func(context.Context) (*feasible.Filters, error)
	now         func() time.Time
	after       func(time.Duration) <-chan time.Time
	in          io.Reader
	out, errOut io.Writer
}

// New is the command line of `kubectl vernier`. Errors are returned, not
// printed.
func New(out, errOut io.Writer) *cobra.Command {
	c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, after: time.After, evictAgain: evictAgain, in: os.Stdin, out: out, errOut: errOut}
	if s := screen(out); s != nil {
		c.out = s
	}
	c.scrape = (&forwarded{connect: c.flags.ToRESTConfig, now: time.Now}).read
	c.connect = func() (client.Client, error) {
		cfg, err := c.flags.ToRESTConfig()
		if err != nil {
			return nil, err
		}
		return newClient(cfg)
	}
	c.clientset = func() (kubernetes.Interface, error) {
		return cmdutil.NewFactory(c.flags).KubernetesClientSet()
	}
	c.filters = func(ctx context.Context) (*feasible.Filters, error) {
		cfg, err := c.flags.ToRESTConfig()
		if err != nil {
			return nil, err
		}
		return readFilters(ctx, cfg)
	}
	return c.root()
}

func (c *command) root() *cobra.Command {
	c.out, c.errOut = Escaped(c.out), Escaped(c.errOut)
	root := c.sub("kubectl-vernier", "Show GPU nodes, devices, slices and waiting pods; take devices out of service", c.overview)
	root.Long = `Show who has which part of which GPU, and who waits for one.

Without a subcommand, everything at once. CORE is percent of a GPU's compute,
MEM is MiB; granted/total counts what the ledger has promised. The guarantees say
what holds a slice in force: device (it has the whole GPU), hardware (the GPU is
cut, and it has its part), driver (hard), cooperative (the limiter in the
container) or none (no quota was asked for).`
	root.Example = `  kubectl vernier                   # everything, slices and waiting pods of this namespace
  kubectl vernier slices -A         # who has what, and under which guarantee
  kubectl vernier waiting -A        # who waits, and why
  kubectl vernier why deploy/server # why its pods wait, do not start, or are refused
  kubectl vernier devices -o wide   # full UUIDs, PCI, NUMA, NICs, reasons
  kubectl vernier nodes -o json     # stable, for scripts
  kubectl vernier explain -f x.yaml # what admission would make of it, without a cluster
  kubectl vernier drain NODE/GPU    # nothing new on a device, and its pods evicted`
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl vernier"}
	root.Version = version.String()
	// Not sub's: cobra's own check of a root says which subcommand may be meant.
	root.Args = nil
	root.SetOut(c.out)
	root.SetErr(c.errOut)

	flags := root.PersistentFlags()
	c.flags.AddFlags(flags)
	flags.StringVarP(&c.output.format, "output", "o", "", "json, yaml, name, wide, or kubectl's jsonpath=, go-template= and custom-columns=, each with -file, too")
	flags.BoolVar(&c.output.noHeaders, "no-headers", false, "print no header line")
	flags.BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "slices and waiting pods of all namespaces")

	completeWith(root, "output", "json", "yaml", "name", "wide", "jsonpath=", "jsonpath-file=", "go-template=", "go-template-file=", "custom-columns=", "custom-columns-file=")
	c.chosen(root, "pods: slices and waiting pods")

	root.AddCommand(
		c.ordered(c.ofNodes(c.sub("nodes", "GPU nodes and what is granted on each", c.nodes))),
		c.ordered(c.ofNodes(c.sub("devices", "GPUs and what is granted of each", c.devices))),
		c.ordered(c.chosen(c.sub("slices", "Slices by pod and container, with the guarantee in force", c.slices), "pods")),
		c.ordered(c.chosen(c.sub("waiting", "Pods that wait for a slice, and why", c.waiting), "pods")),
		c.ordered(c.chosen(c.sub("top", "Use of slices by their containers now", c.top), "pods")),
		c.whyCommand(),
		c.fitCommand(),
		c.sub("classes", "GPU classes, and how many units of each there are", c.classes),
		c.ordered(c.sub("tides", "Tides: when idle slices may be on which nodes, and how much they may have", c.tides)),
		c.sub("defrag", "Slices that stand in the way of whole GPUs", c.defrag),
		c.usageCommand(),
		c.ordered(c.sub("advise", "Use of slices by workload, and how much each should request", c.advise)),
		c.inspectCommand(),
		c.explainCommand(),
		c.quotaCommand(),
		c.resizeCommand(),
		c.cordonCommand(),
		c.uncordonCommand(),
		c.drainCommand(),
		c.checkCommand(),
		c.uninstallCommand(),
	)
	return root
}

// completeWith has the shell propose the words for a flag.
func completeWith(cmd *cobra.Command, flag string, words ...string) {
	// It fails for a flag that is not there, and every test would see that.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// sub is a command that takes no arguments and reads.
func (c *command) sub(name, short string, run func(context.Context, client.Reader) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.output.validate(); err != nil {
				return err
			}
			r, err := c.session()
			if err != nil {
				return err
			}
			look := func() error { return run(cmd.Context(), r) }
			if c.watch {
				return c.watched(cmd.Context(), look)
			}
			return look()
		},
	}
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "look again every 2 s")
	return cmd
}

// session connects, and finds out the namespace.
func (c *command) session() (client.Client, error) {
	api, err := c.connect()
	if err == nil && !c.allNamespaces {
		c.ns, _, err = c.flags.ToRawKubeConfigLoader().Namespace()
	}
	return api, err
}

// propose has the shell propose names for the arguments of a command; none where anything fails.
func (c *command) propose(cmd *cobra.Command, most int, names func(context.Context, client.Reader) ([]string, error)) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) (all []string, _ cobra.ShellCompDirective) {
		if api, err := c.session(); err == nil && len(args) < most {
			all, _ = names(cmd.Context(), api)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

func (c *command) nodes(ctx context.Context, r client.Reader) error {
	all, err := c.nodeLedgers(ctx, r)
	if err != nil {
		return err
	}
	return list(c, view.KindNodes, model.Nodes(all), c.nodeSection)
}

func (c *command) devices(ctx context.Context, r client.Reader) error {
	all, err := c.nodeLedgers(ctx, r)
	if err != nil {
		return err
	}
	return list(c, view.KindDevices, model.Devices(all), func(devices []model.Device) section {
		return section{table: view.DeviceTable(devices, c.output.wide()), none: noDevices}
	})
}

// list prints items in the order that --sort-by names.
func list[T any](c *command, kind string, items []T, table func([]T) section) error {
	items, err := sorted(c.sortBy, items)
	if err != nil {
		return err
	}
	return c.output.print(c.out, c.errOut, view.NewList(kind, items), table(items))
}

func (c *command) slices(ctx context.Context, r client.Reader) error {
	all, readable, err := readableLedgers(ctx, r)
	if err != nil {
		return err
	}
	slices, err := c.visibleSlices(ctx, r, all, readable)
	if err != nil {
		return err
	}
	if !readable {
		c.leftOut("GPU indexes, guarantees and slices being released")
	}
	return list(c, view.KindSlices, slices, c.sliceSection)
}

func (c *command) waiting(ctx context.Context, r client.Reader) error {
	all, _, err := readableLedgers(ctx, r)
	if err != nil {
		return err
	}
	pods, err := c.waitingPods(ctx, r, all)
	if err != nil {
		return err
	}
	return list(c, view.KindWaiting, pods, c.waitingSection)
}

func (c *command) classes(ctx context.Context, r client.Reader) error {
	var list v1alpha1.GPUClassList
	if err := r.List(ctx, &list); apierrors.IsForbidden(err) {
		return c.roomOfClasses(ctx, r, explain(err, "gpuclasses."+v1alpha1.Group, ""))
	} else if err != nil {
		return explain(err, "gpuclasses."+v1alpha1.Group, "")
	}
	all, err := ledgers(ctx, r)
	if apierrors.IsForbidden(err) {
		return c.roomOfClasses(ctx, r, err)
	} else if err != nil {
		return err
	}
	pods, err := podsIn(ctx, r, "")
	if apierrors.IsForbidden(err) {
		fmt.Fprintln(whole(c.errOut), "left out: what is granted, which the pods of all namespaces say; a ClusterRoleBinding to view shows it")
	} else if err != nil {
		return err
	}
	classes := view.Classes(list.Items, all, pods, err == nil)
	for i := range classes {
		if why := classes[i].Unavailable; why != "" {
			fmt.Fprintf(whole(c.errOut), "class %s serves no pod: %s\n", classes[i].Name, why)
		}
	}
	return c.output.print(c.out, c.errOut, view.NewList(view.KindClasses, classes),
		section{table: view.ClassTable(classes), none: "No GPU classes: a GPUClass gives a share of some models a name."})
}

func (c *command) defrag(ctx context.Context, r client.Reader) error {
	all, err := ledgers(ctx, r)
	if err != nil {
		return err
	}
	fragments := view.Defrag(all)
	if err := c.output.print(c.out, c.errOut, view.NewList(view.KindFragments, fragments),
		section{table: view.DefragTable(fragments), none: "No GPU is shared: nothing stands in the way of whole ones."}); err != nil || !c.output.forPeople() {
		return err
	}
	shown := 0
	for _, f := range fragments {
		if !f.Freeable || f.Index == nil || shown == shownDrains {
			continue
		}
		if shown++; shown == 1 {
			fmt.Fprintln(c.out, "\nA GPU is freed by one of these: they evict its pods, which fit elsewhere, and cordon it.")
		}
		fmt.Fprintf(whole(c.out), "kubectl vernier drain %s/%d\n", f.Node, *f.Index)
	}
	return nil
}

// shownDrains bounds the commands that defrag proposes: the first ones take least to free.
const shownDrains = 3

// waitingPods are the pods that wait, and what for by these ledgers, if there are any that the user
// may read.
func (c *command) waitingPods(ctx context.Context, r client.Reader, all []v1alpha1.SliceLedger) ([]model.WaitingPod, error) {
	pods, err := unbound(ctx, r, c.ns)
	if err != nil {
		return nil, err
	}
	events, err := c.verdicts(ctx, c.ns)
	if err != nil {
		return nil, err
	}
	from := view.Evidence{Ledgers: all, Room: c.room(ctx, r), Verdicts: events, Now: c.now(), Around: view.Around{Pods: pods}}
	if len(pods) > 0 {
		from.Nodes = nodesByName(ctx, r)
		if from.Classes, err = gpuClasses(ctx, r); err != nil {
			return nil, err
		}
	}
	return ofPods(ctx, c, r, from.Picture().WaitingPods(pods), func(p model.WaitingPod) types.NamespacedName {
		return types.NamespacedName{Namespace: p.Namespace, Name: p.Pod}
	})
}

func (c *command) overview(ctx context.Context, r client.Reader) error {
	all, readable, err := readableLedgers(ctx, r)
	if err != nil {
		return err
	}
	pods, err := c.waitingPods(ctx, r, all)
	if err != nil {
		return err
	}
	slices, err := c.visibleSlices(ctx, r, all, readable)
	if err != nil {
		return err
	}
	nodes, devices := model.Nodes(all), model.Devices(all)
	sections := []section{c.sliceSection(slices), c.waitingSection(pods)}
	if readable {
		table := view.DeviceBars(devices)
		if c.output.wide() {
			table = view.DeviceTable(devices, true)
		}
		sections = append([]section{c.nodeSection(nodes), {title: "DEVICES", table: table, none: noDevices}}, sections...)
	} else {
		c.leftOut("nodes, devices, guarantees and slices being released")
	}
	shown := view.NewOverview(nodes, devices, slices, pods)
	if c.ns != "" && c.selector == "" {
		quotas, _, err := c.quotas(ctx, r)
		if err != nil {
			return err
		}
		shown.Use = view.NamespaceUses(slices, quotas)
		sections = append([]section{{title: "USE " + c.where(), table: view.NamespaceTable(shown.Use)}}, sections...)
	}
	return c.output.print(c.out, c.errOut, shown, sections...)
}

const noDevices = "No GPUs: no node agent has reported one."

func (c *command) nodeSection(nodes []model.Node) section {
	return section{"NODES", view.NodeTable(nodes, c.output.wide()),
		"No GPU nodes: label them " + v1alpha1.LabelGPUNode + "=" + v1alpha1.LabelGPUNodeTrue + ", and the node agent makes each one's ledger."}
}

func (c *command) sliceSection(slices []model.Slice) section {
	return section{"SLICES " + c.where(), view.SliceTable(slices, c.now(), c.output.wide()), "No slices " + c.where() + "."}
}

func (c *command) waitingSection(pods []model.WaitingPod) section {
	return section{"WAITING " + c.where(), view.WaitingTable(pods, c.now(), c.output.wide()),
		"No pods wait for a slice " + c.where() + "."}
}

// where says of which namespace what is shown is.
func (c *command) where() string {
	if c.ns == "" {
		return "in all namespaces"
	}
	return "in namespace " + c.ns
}
