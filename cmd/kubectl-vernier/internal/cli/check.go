// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// The oldest versions that Vernier runs on.
var (
	oldestKubernetes = version.MustParseGeneric("1.34.0")
	oldestContainerd = version.MustParseGeneric("2.2.0")
)

// onlyWarns is the policy that refuses nothing: it says what a policy on pods will refuse.
const onlyWarns = "vernier-workloads-elsewhere"

// policies are the names of the chart's admission policies, each of which has a binding of the same name.
var policies = []string{"vernier-advice", "vernier-allocator-buffers", "vernier-allocator-checks", "vernier-allocator-classes", "vernier-allocator-deletions", "vernier-allocator-evictions", "vernier-allocator-ledgers", "vernier-allocator-nodes",
	"vernier-allocator-tides", "vernier-allocator-tokens", "vernier-allocator-workloads", "vernier-bindings", "vernier-deletions", "vernier-events", "vernier-evictions", "vernier-limits", "vernier-namespaces",
	"vernier-node-events", "vernier-nodes", "vernier-pod-changes", "vernier-pods", "vernier-pods-elsewhere", "vernier-priority", "vernier-rdma",
	"vernier-webhook-configuration", onlyWarns}

const (
	installs = "Install the chart, or apply deploy/, again"
	mayCheck = "`kubectl create clusterrolebinding NAME --clusterrole=vernier-check --user=YOU` lets you read it"
)

// checker looks at an installation and changes nothing.
type checker struct {
	*command
	client.Reader
	found []view.Check
}

func (c *command) checkCommand() *cobra.Command {
	cmd := c.sub("check", "Say what the installation lacks, with the remedy; exits with 1 if anything is missing", func(ctx context.Context, r client.Reader) error {
		k := &checker{command: c, Reader: r}
		for _, look := range []func(context.Context) error{k.kubernetes, k.definitions, k.policies, k.webhook, k.workloads, k.nodes, k.namespaces} {
			if err := look(ctx); err != nil {
				return err
			}
		}
		if err := list(c, view.KindChecks, k.found, func(checks []view.Check) section { return section{table: view.CheckTable(checks)} }); err != nil {
			return err
		}
		if missing := k.count(view.CheckMissing); missing > 0 {
			return fmt.Errorf("%d of %d checks failed", missing, len(k.found))
		}
		return nil
	})
	cmd.Long = `Look at versions, definitions, policies, the webhook's certificate, the components, the GPU nodes with
containerd's settings as their ledgers report them, and the labels. Each line has what was found and
the remedy. Nothing is changed. The cluster role vernier-check is enough; a check that you may
not make is unknown, which is no failure.`
	cmd.Example = `  kubectl vernier check
  kubectl vernier check -o json`
	return cmd
}

func (k *checker) count(state view.CheckState) (n int) {
	for _, c := range k.found {
		if c.State == state {
			n++
		}
	}
	return n
}

// add notes a check; one without a remedy is ok.
func (k *checker) add(name, found, remedy string) {
	state := view.CheckOK
	if remedy != "" {
		state = view.CheckMissing
	}
	k.found = append(k.found, view.Check{Name: name, State: state, Found: found, Remedy: remedy})
}

// failed notes why a check could not be made, and returns the errors that are those of all checks.
func (k *checker) failed(name, what string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		k.found = append(k.found, view.Check{Name: name, State: view.CheckUnknown, Found: "You may not read " + what, Remedy: mayCheck})
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		k.add(name, "There is no "+what, installs)
	default:
		return explain(err, what, "")
	}
	return nil
}

func (k *checker) kubernetes(context.Context) error {
	set, err := k.clientset()
	if err != nil {
		return err
	}
	is, err := set.Discovery().ServerVersion()
	if err != nil {
		return k.failed("kubernetes", "version of the API server", err)
	}
	k.add("kubernetes", "API server "+is.GitVersion, older(is.GitVersion, oldestKubernetes, "Kubernetes"))
	return nil
}

// older returns the remedy for a version that is too old, or that is none.
func older(is string, oldest *version.Version, of string) string {
	if v, err := version.ParseGeneric(is); err == nil && v.AtLeast(oldest) {
		return ""
	}
	return fmt.Sprintf("Vernier needs %s %d.%d or newer", of, oldest.Major(), oldest.Minor())
}

func (k *checker) definitions(ctx context.Context) error {
	for i, list := range []client.ObjectList{&v1alpha1.GPUClassList{}, &v1alpha1.SliceAdviceList{}, &v1alpha1.SliceLedgerList{}, &v1alpha1.SliceUsageList{}, &v1alpha1.TideList{}} {
		if err := k.List(ctx, list, client.Limit(1)); err != nil {
			return k.failed("definitions", "definition "+definitions[i], err)
		}
	}
	k.add("definitions", "The API server serves "+strings.Join(definitions, ", "), "")
	return nil
}

func (k *checker) policies(ctx context.Context) error {
	var all admissionregistrationv1.ValidatingAdmissionPolicyList
	var bindings admissionregistrationv1.ValidatingAdmissionPolicyBindingList
	if err := errors.Join(k.List(ctx, &all), k.List(ctx, &bindings)); err != nil {
		return k.failed("policies", "admission policies", err)
	}
	have := map[string]int{}
	for _, p := range all.Items {
		have[p.Name]++
	}
	for _, b := range bindings.Items {
		if b.Spec.PolicyName == b.Name && (b.Name == onlyWarns || slices.Contains(b.Spec.ValidationActions, admissionregistrationv1.Deny)) {
			have[b.Name]++
		}
	}
	var missing []string
	for _, name := range policies {
		if have[name] < 2 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		k.add("policies", fmt.Sprintf("%d of %d lack their policy or a binding that denies: %s", len(missing), len(policies), v1alpha1.NamesText(missing, 5)), installs)
		return nil
	}
	k.add("policies", fmt.Sprintf("%d admission policies are in force", len(policies)), "")
	return nil
}

// webhook looks at the certificate by which the API server knows the webhook.
func (k *checker) webhook(ctx context.Context) error {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := k.Get(ctx, client.ObjectKey{Name: v1alpha1.WebhookServiceAccount}, &config); err != nil {
		return k.failed("certificate", "MutatingWebhookConfiguration vernier-webhook", err)
	}
	var bundle []byte
	if len(config.Webhooks) > 0 {
		bundle = config.Webhooks[0].ClientConfig.CABundle
	}
	ends, err := validUntil(bundle)
	switch {
	case err != nil:
		k.add("certificate", "The webhook's configuration: "+err.Error(), "Its source (webhook.certificate.source) writes caBundle: read the log of deploy/vernier-webhook")
	case !ends.After(k.now()):
		k.add("certificate", "The webhook's certificate authority has expired on "+ends.UTC().Format(time.DateOnly), "Renew it at its source (webhook.certificate.source)")
	default:
		k.add("certificate", "The webhook's certificate authority is valid until "+ends.UTC().Format(time.DateOnly), "")
	}
	return nil
}

// validUntil is the end of the certificate that is valid longest.
func validUntil(bundle []byte) (ends time.Time, err error) {
	if len(bundle) == 0 {
		return ends, errors.New("caBundle is empty")
	}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return ends, fmt.Errorf("caBundle: %w", err)
		}
		if cert.NotAfter.After(ends) {
			ends = cert.NotAfter
		}
	}
	if ends.IsZero() {
		return ends, errors.New("caBundle has no certificate")
	}
	return ends, nil
}

// workloads looks at the components that run, and whether they are of one release.
func (k *checker) workloads(ctx context.Context) error {
	releases := map[string]bool{}
	ready := func(kind, name string, ready, want int32, pod corev1.PodSpec) {
		image, _, _ := strings.Cut(path.Base(pod.Containers[0].Image), "@")
		_, release, tagged := strings.Cut(image, ":")
		if releases[release] = true; !tagged {
			release = "of a digest"
		}
		remedy := ""
		if ready < want {
			remedy = fmt.Sprintf("`kubectl describe %s/%s -n %s` and its pods say why", kind, name, v1alpha1.SystemNamespace)
		}
		k.add(name, fmt.Sprintf("%d of %d pods are ready, release %s", ready, want, release), remedy)
	}
	for _, name := range []string{v1alpha1.WebhookServiceAccount, v1alpha1.AllocatorServiceAccount} {
		var d appsv1.Deployment
		if err := k.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: name}, &d); err == nil {
			ready("deploy", name, d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1), d.Spec.Template.Spec)
		} else if err := k.failed(name, "deployment "+name, err); err != nil {
			return err
		}
	}
	const name = v1alpha1.NodeServiceAccount
	var d appsv1.DaemonSet
	if err := k.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: name}, &d); err == nil {
		ready("ds", name, d.Status.NumberReady, d.Status.DesiredNumberScheduled, d.Spec.Template.Spec)
	} else if err := k.failed(name, "daemon set "+name, err); err != nil {
		return err
	}
	if len(releases) > 1 {
		k.add("release", fmt.Sprintf("The components are of %d releases", len(releases)), "Finish the upgrade: "+installs)
	}
	return nil
}

// nodes names each GPU node with a fault, and counts the others.
func (k *checker) nodes(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := k.List(ctx, &nodes, client.MatchingLabels{v1alpha1.LabelGPUNode: v1alpha1.LabelGPUNodeTrue}); err != nil {
		return k.failed("nodes", "nodes", err)
	}
	if len(nodes.Items) == 0 {
		k.add("nodes", "No node has the label "+v1alpha1.LabelGPUNode, "`kubectl label node NODE "+v1alpha1.LabelGPUNode+"="+v1alpha1.LabelGPUNodeTrue+"` on each GPU node")
		return nil
	}
	var ledgers v1alpha1.SliceLedgerList
	if err := k.List(ctx, &ledgers); gone(err) {
		return nil // the definitions' check says so
	} else if err != nil {
		return k.failed("nodes", "ledgers", err)
	}
	of := map[string]*v1alpha1.SliceLedger{}
	for i := range ledgers.Items {
		of[ledgers.Items[i].Name] = &ledgers.Items[i]
	}
	good, gpus := 0, 0
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if found, remedy := nodeFault(node, of[node.Name]); remedy != "" {
			k.add("node/"+node.Name, found, remedy)
			continue
		}
		good, gpus = good+1, gpus+len(of[node.Name].Status.Devices)
	}
	if good > 0 {
		k.add("nodes", fmt.Sprintf("%d of %d GPU nodes are ready (GPUs: %d)", good, len(nodes.Items), gpus), "")
	}
	return nil
}

// nodeFault returns the first thing that keeps a node from having slices, and its remedy.
func nodeFault(node *corev1.Node, ledger *v1alpha1.SliceLedger) (found, remedy string) {
	runtime := node.Status.NodeInfo.ContainerRuntimeVersion
	of, is, _ := strings.Cut(runtime, "://")
	if of != "containerd" {
		return "Its container runtime is " + runtime, "Vernier needs containerd"
	}
	if remedy := older(is, oldestContainerd, "containerd"); remedy != "" {
		return "Its container runtime is " + runtime, remedy
	}
	if ledger == nil {
		return "It has no ledger", fmt.Sprintf("The node agent makes it: `kubectl get pods -n %s -o wide` shows the agent's pod on it", v1alpha1.SystemNamespace)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAgentReachable} {
		if is := meta.FindStatusCondition(ledger.Status.Conditions, kind); is == nil && kind == v1alpha1.ConditionReady {
			return "Its ledger has no condition " + kind + " yet", "Look again in a minute; then read the log of the node agent's pod"
		} else if is != nil && is.Status != "True" {
			return fmt.Sprintf("%s: %s", is.Reason, strings.TrimSuffix(is.Message, ".")), "docs/troubleshooting.md has each reason"
		}
	}
	if others := node.Status.Allocatable["nvidia.com/gpu"]; !others.IsZero() {
		return "NVIDIA's device plugin hands out its GPUs too", "Take that plugin off the nodes that Vernier manages"
	}
	return "", ""
}

func (k *checker) namespaces(ctx context.Context) error {
	var all corev1.NamespaceList
	if err := k.List(ctx, &all, client.MatchingLabels{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}); err != nil {
		return k.failed("namespaces", "namespaces", err)
	}
	if len(all.Items) == 0 {
		k.add("namespaces", "No namespace may ask for shares", "`kubectl label namespace NAMESPACE "+v1alpha1.LabelInject+"="+v1alpha1.LabelInjectEnabled+"`")
		return nil
	}
	k.add("namespaces", fmt.Sprintf("Labelled for shares: %d", len(all.Items)), "")
	return nil
}
