// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
)

var update = flag.Bool("update", false, "write what the commands print as the expected output")

// golden compares what a command printed with a file of testdata.
func golden(t *testing.T, name, args, out string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must.Do(t, os.WriteFile(file, []byte(out), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	if diff := cmp.Diff(string(want), out); diff != "" {
		t.Errorf("kubectl vernier %s (-want +got):\n%s", args, diff)
	}
}

// TestGolden runs every command as a user would. What it prints for scripts is
// a promise: a change of a *.json or *.yaml file here breaks users.
func TestGolden(t *testing.T) {
	for name, args := range map[string]string{
		"overview":           "-A",
		"overview-namespace": "-n team-b",
		"overview-wide":      "-A -o wide",
		"overview.json":      "-A -o json",
		"nodes":              "nodes",
		"nodes-wide":         "nodes -o wide",
		"nodes.json":         "nodes -o json",
		"devices":            "devices",
		"devices-wide":       "devices -o wide",
		"devices.json":       "devices -o json",
		"slices":             "slices -A",
		"slices-namespace":   "slices -n team-a",
		"slices-wide":        "slices -A -o wide",
		"slices-bare":        "slices -A --no-headers",
		"slices.json":        "slices -A -o json",
		"waiting":            "waiting -A",
		"waiting-namespace":  "waiting -n team-b",
		"defrag":             "defrag",
		"why":                "why big -n team-a",
		"why-gates":          "why pod/queued -n team-a",
		"why-not-ours":       "why not-ours -n team-a",
		"why.json":           "why new -n team-b -o json",
		"fit":                "fit -f testdata/manifests --dialects all",
		"fit-one":            "fit -f testdata/pod.yaml",
		"fit.json":           "fit -f testdata/pod.yaml -o json",
		"defrag.json":        "defrag -o json",
		"inspect":            "inspect",
		"inspect-mib":        "inspect --unit MiB",
		"waiting-wide":       "waiting -A -o wide",
		"waiting.yaml":       "waiting -A -o yaml",
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := run(t, fakeClient(t, fixture()...), args)
			// Some of these pods find no room, or are refused.
			if unfit := name == "fit" && err != nil && err.Error() == "8 of 11 pods would wait or be refused"; err != nil && !unfit || errOut != "" {
				t.Fatalf("error %v, stderr %q", err, errOut)
			}
			golden(t, name, args, out)
		})
	}
}

// Who may not read the quotas of the namespace is shown the rest.
func TestOverview_WhenQuotasAreForbidden_RestIsShown(t *testing.T) {
	r := interceptor.NewClient(fakeClient(t, fixture()...), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, quotas := list.(*corev1.ResourceQuotaList); quotas {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "resourcequotas"}, "", nil)
			}
			return c.List(ctx, list, o...)
		}})
	out, errOut, err := run(t, r, "-n team-b")
	if err != nil || errOut != "left out: the quotas of namespace team-b; the cluster role view shows them\n" || !strings.HasPrefix(out, "USE in namespace team-b\n") {
		t.Errorf("%s, stderr %q, error %v", out, errOut, err)
	}
}

// An empty cluster says what is missing, on stderr for a single table, and
// prints lists over which scripts can loop.
func TestEmpty(t *testing.T) {
	for args, want := range map[string]struct{ out, errOut string }{
		"nodes":             {"", "No GPU nodes: label them vernier.dev/gpu-node=true, and the node agent makes each one's ledger.\n"},
		"devices":           {"", "No GPUs: no node agent has reported one.\n"},
		"slices -A":         {"", "No slices in all namespaces.\n"},
		"slices -n team-a":  {"", "No slices in namespace team-a.\n"},
		"waiting -n team-a": {"", "No pods wait for a slice in namespace team-a.\n"},
		"nodes -o json":     {"{\n    \"apiVersion\": \"view.vernier.dev/v1\",\n    \"kind\": \"NodeList\",\n    \"items\": []\n}\n", ""},
	} {
		t.Run(args, func(t *testing.T) {
			out, errOut, err := run(t, fakeClient(t), args)
			if err != nil || out != want.out || errOut != want.errOut {
				t.Errorf("printed %q, stderr %q, error %v, want %+v", out, errOut, err, want)
			}
		})
	}
}

// What the tables say of a guarantee the help explains.
func TestHelpExplainsGuarantees(t *testing.T) {
	help := New(io.Discard, io.Discard).Long
	for _, g := range []v1alpha1.Guarantee{v1alpha1.GuaranteeDevice, v1alpha1.GuaranteeHardware, v1alpha1.GuaranteeDriver,
		v1alpha1.GuaranteeCooperative, v1alpha1.GuaranteeNone} {
		if !strings.Contains(help, string(g)+" (") {
			t.Errorf("the help does not say what %q is", g)
		}
	}
}

// Errors name the remedy.
func TestErrors(t *testing.T) {
	ledgers := schema.GroupResource{Group: v1alpha1.Group, Resource: "sliceledgers"}
	pods := schema.GroupResource{Resource: "pods"}
	denied := errors.New(`User "eve" cannot list it`)
	for name, test := range map[string]struct {
		err  error
		args string
		want []string
	}{
		"no answer":    {&url.Error{Op: "Get", URL: "http://localhost:8080/apis", Err: errors.New("connection refused")}, "nodes", []string{"connection refused", "KUBECONFIG"}},
		"no login":     {apierrors.NewUnauthorized("token expired"), "nodes", []string{"token expired", "login"}},
		"no CRD":       {apierrors.NewNotFound(ledgers, ""), "nodes", []string{"sliceledgers.vernier.dev", "is Vernier installed?", "kubectl apply"}},
		"ledgers":      {apierrors.NewForbidden(ledgers, "", denied), "nodes", []string{`"eve"`, "clusterrolebinding", "vernier-viewer"}},
		"pods":         {apierrors.NewForbidden(pods, "", denied), "waiting -n team-a", []string{`"eve"`, "list pods in namespace team-a"}},
		"all pods":     {apierrors.NewForbidden(pods, "", denied), "waiting -A", []string{"list pods in all namespaces", "-n NAME"}},
		"server away":  {errors.New("connection refused"), "devices", []string{"sliceledgers", "connection refused"}},
		"bad output":   {nil, "nodes -o table", []string{`"table"`, "json, yaml, name, wide"}},
		"bad argument": {nil, "defrag gpu-1", []string{"gpu-1"}},
		"no such node": {nil, "devices gpu-9", []string{`sliceledgers.vernier.dev "gpu-9" not found`, "kubectl vernier nodes"}},
		"name and -l":  {nil, "nodes gpu-1 -l a=b", []string{"not both"}},
		"bad selector": {nil, "waiting -A -l a=b=c", []string{"--selector"}},
		"no such pod":  {nil, "why none -n team-a", []string{"no pod none in namespace team-a"}},
		"no pod named": {nil, "why -n team-a", []string{"name one pod"}},
		"which pod":    {nil, "why none -A", []string{"-n instead of -A"}},
		"nothing fits": {nil, "fit", []string{"-f FILE"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := run(t, failing{fakeClient(t), test.err}, test.args)
			if err == nil || out != "" {
				t.Fatalf("printed %q, error %v, want an error and no output", out, err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

// input is what the next command reads from standard input, filters are the scheduler's.
var (
	input   io.Reader
	filters = filtersOf(func(*corev1.Node) {})
)

func run(t *testing.T, r client.Client, args string) (out, errOut string, err error) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var stdout, stderr bytes.Buffer
	c := &command{
		flags:     genericclioptions.NewConfigFlags(true),
		connect:   func() (client.Client, error) { return r, nil },
		clientset: func() (kubernetes.Interface, error) { return eventsOf(r), nil },
		now:       func() time.Time { return now },
		after:     time.After,
		filters:   filters,
		in:        input, out: &stdout, errOut: &stderr,
	}
	if s, ok := r.(interface {
		clientset() (kubernetes.Interface, error)
	}); ok {
		c.clientset, c.now = s.clientset, time.Now // the server's clock
	}
	root := c.root()
	root.SetArgs(strings.Fields(args))
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// events is a clientset that lists events and knows its server's version.
type events struct {
	kubernetes.Interface
	typedcorev1.CoreV1Interface
	api rest.Interface
}

func (e events) CoreV1() typedcorev1.CoreV1Interface { return e }

func (e events) RESTClient() rest.Interface { return e.api }

// eventsOf lists those of the reader.
func (events) Discovery() discovery.DiscoveryInterface {
	return &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}, FakedServerVersion: &apiversion.Info{GitVersion: "v1.36.3"}}
}

func eventsOf(r client.Reader) events {
	return events{api: objects.Events(func(ctx context.Context, namespace string) ([]corev1.Event, error) {
		var list corev1.EventList
		err := r.List(ctx, &list, client.InNamespace(namespace))
		return list.Items, err
	})}
}

// fakeClient answers the field selectors as the API server does.
func fakeClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := must.Get(newScheme())(t)
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.SliceLedger{}).
		WithIndex(&corev1.Pod{}, fieldNodeName, func(o client.Object) []string {
			return []string{o.(*corev1.Pod).Spec.NodeName}
		}).Build()
}

// failing fails every list if it has an error.
type failing struct {
	client.Client
	err error
}

func (f failing) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	if f.err != nil {
		return f.err
	}
	return f.Client.List(ctx, list, o...)
}

// defrag proposes the command that frees a GPU of which all fits elsewhere.
func TestDefragProposesDrains(t *testing.T) {
	ledger := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	ledger.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	for i, uuid := range []string{gpuA, gpuB} {
		ledger.Status.Devices = append(ledger.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(i), Model: "A100", Mem: 81920, Healthy: true})
		ledger.Spec.Devices = append(ledger.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 81920,
			Slices: []v1alpha1.Slice{{Pod: types.UID("uid-" + uuid), Owner: "team-a/" + strings.ToLower(uuid), Ctr: "main", Core: 30, Mem: 1024}}})
	}
	out, _, err := run(t, fakeClient(t, ledger), "defrag")
	if err != nil || !strings.Contains(out, "\nkubectl vernier drain gpu-1/0\nkubectl vernier drain gpu-1/1\n") {
		t.Errorf("%s %v", out, err)
	}
	if out, _, err := run(t, fakeClient(t, ledger), "defrag -o json"); err != nil || strings.Contains(out, "drain") {
		t.Errorf("%s %v", out, err)
	}
}
