// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
)

// escapes set a terminal's title, its colour in two ways, go back over the line and turn the
// direction of writing.
const escapes = "\x1b]0;owned\x07\x1b[31m\u009b32m\r\b\x7f\u202e"

// hostileCluster has escapes in all texts that tenants, agents and operators write, which an API
// server takes or does not.
func hostileCluster() []client.Object {
	objects := slices.Concat(classFixture(), accounts(), advised(), tideFixture())
	objects = append(objects, agent("vernier-node-1", "gpu-1"), agent("vernier-node-2", "gpu-2"))
	for _, o := range objects {
		switch o := o.(type) {
		case *v1alpha1.SliceLedger:
			o.Status.Driver.Version += escapes
			o.Status.Driver.MemoryLimitsReason += escapes
			for i := range o.Status.Devices {
				d := &o.Status.Devices[i]
				d.Model, d.PCI, d.NICs = d.Model+escapes, d.PCI+escapes, append(d.NICs, escapes)
			}
			for i := range o.Spec.Devices {
				for n := range o.Spec.Devices[i].Slices {
					s := &o.Spec.Devices[i].Slices[n]
					s.Owner, s.Ctr = s.Owner+escapes, s.Ctr+escapes
				}
			}
			for i := range o.Status.Conditions {
				o.Status.Conditions[i].Message += escapes
			}
			o.Spec.Cordons = append(o.Spec.Cordons, v1alpha1.Cordon{UUID: gpuB, By: escapes, Reason: "fans" + escapes})
		case *v1alpha1.SliceUsage:
			o.Name += escapes
			for i := range o.Status.Hours {
				m := &o.Status.Hours[i].Models[0]
				m.Model, m.Granted[0].Namespace = m.Model+escapes, m.Granted[0].Namespace+escapes
			}
		case *v1alpha1.SliceAdvice:
			s := &o.Status
			s.Workload, s.Container, s.Confidence = s.Workload+escapes, s.Container+escapes, s.Confidence+escapes
			s.Reasons = append(s.Reasons, escapes)
		case *v1alpha1.Tide:
			o.Name += escapes
			for i := range o.Status.Conditions {
				o.Status.Conditions[i].Message += escapes
			}
		case *v1alpha1.GPUClass:
			o.Spec.Models, o.Spec.Topology = append(o.Spec.Models, "L4"+escapes), "numa"+escapes
		case *corev1.Event:
			o.Message, o.Reason = o.Message+escapes, o.Reason+escapes
		case *corev1.Pod:
			o.Status.Message, o.Status.Reason = escapes, escapes
			if o.Name == "queued" {
				o.Spec.SchedulingGates = append(o.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "gate" + escapes})
			}
			for i := range o.Spec.Containers {
				o.Spec.Containers[i].Name += escapes
			}
		}
	}
	failed := gated("team-a", "failed", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":1}}}`)
	failed.Spec.SchedulingGates, failed.Status = nil, corev1.PodStatus{Phase: corev1.PodFailed, Message: escapes, Reason: "Evicted" + escapes}
	kept := event("kept", "new", time.Second, eventSource, "reserved on node gpu-1"+escapes+" GPU 0, about 1h")
	kept.Namespace, kept.InvolvedObject.Namespace, kept.Reason = "team-b", "team-b", "VernierReserved"
	holder := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train" + escapes, UID: "uid-train"}}
	return append(objects, failed, kept, holder)
}

// Whatever others have written, a terminal gets none of it as an order, from no command and in no
// form that is not encoded.
func TestHostileTerminalEscapes(t *testing.T) {
	dir := t.TempDir()
	manifest := filepath.Join(dir, "pods.yaml")
	quoted := `\e]0;owned\a\e[31m\x9b32m\r\b\x7f\u202e\n`
	text := `{apiVersion: v1, kind: Pod, metadata: {name: "p` + quoted + `", namespace: "n` + quoted + `", annotations: {vernier.dev/gpu-model: "` + quoted + `"}},
  spec: {containers: [{name: "c` + quoted + `", resources: {limits: {vernier.dev/gpu-core: 10}}}]}}
---
{apiVersion: v1, kind: "Pod` + quoted + `", metadata: {name: "q` + quoted + `"}, spec: {containers: [{name: c, resources: {limits: {"vernier.dev/gpu-` + quoted + `": 10}}}]}}
`
	must.Do(t, os.WriteFile(manifest, []byte(text), 0o600))
	commands := map[string]bool{}
	for _, args := range []string{
		"-A", "-A -o wide", "nodes", "nodes -o wide", "devices", "devices -o wide", "slices -A", "slices -A -o wide",
		"waiting -A", "waiting -A -o wide", "top -A", "why big -n team-a", "why queued -n team-a", "why new -n team-b", "why failed -n team-a",
		"why gold -n team-a", "why bronze -n team-a", "why none" + escapes, "classes", "defrag", "inspect", "explain -f " + manifest, "fit -f " + manifest,
		"resize big -n team-a --core 1 -c " + escapes, "resize " + escapes + " -n team-a --mem-mib 1", "cordon gpu-1/0", "uncordon gpu-1/1", "drain gpu-1/0", "drain gpu-1/0 --force --dry-run=client", "cordon gpu-1/" + escapes,
		"quota team-a --gpus 2.5 --memory mib", "quota team-a --gpus " + escapes, "uninstall", "uninstall --wait", "check", "usage -A", "usage -A -o csv", "advise -A", "advise -A -o name", "tides", "tides -o name", "usage --by model --prices " + escapes + "=1",
		"nodes -o name", "devices -o name", "slices -A -o name", "waiting -A -o name", "classes -o name", "explain -o name -f " + manifest,
		"devices -o jsonpath={.items[*].model}", "devices -o go-template={{range.items}}{{.model}}{{end}}", "devices -o custom-columns=M:.model",
		"waiting -A -o jsonpath={.items[*].reason.message}", "nodes -l " + escapes, "nodes --sort-by " + escapes, "nodes -o " + escapes, escapes,
		"__complete devices ", "__complete cordon ", "__complete why -n team-a ", "-A -o json", "why big -n team-a -o yaml", "explain -o json -f " + manifest, "classes -o yaml",
	} {
		commands[strings.Fields(args + " .")[0]] = true
		for _, screen := range []bool{false, true} {
			var out bytes.Buffer
			err := runHostile(t, &out, screen, args)
			if err != nil {
				fmt.Fprintln(Escaped(&out), "error:", err) // as main does
			}
			got := out.String()
			if screen {
				got = strings.NewReplacer(bold, "", red, "", green, "", plain, "").Replace(got)
			}
			harmful := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) }
			if strings.Contains(args, "-o json") && !strings.Contains(args, "jsonpath") || strings.Contains(args, "-o yaml") {
				// As their encoders have them.
				harmful = func(r rune) bool { return r < ' ' && r != '\n' }
			}
			if i := strings.IndexFunc(got, harmful); i >= 0 {
				t.Errorf("%s, on a screen: %v: prints %q", args, screen, got[max(i-60, 0):min(i+60, len(got))])
			}
			if got == "" {
				t.Errorf("%s, on a screen: %v: prints nothing", args, screen)
			}
		}
	}
	for _, sub := range (&command{flags: genericclioptions.NewConfigFlags(true)}).root().Commands() {
		if !commands[sub.Name()] && !sub.Hidden {
			t.Errorf("no case for %s", sub.Name())
		}
	}
}

// runHostile runs a command in the hostile cluster, with standard output on a screen or not.
func runHostile(t *testing.T, out *bytes.Buffer, screen bool, args string) error {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	r := fakeClient(t, hostileCluster()...)
	var stdout io.Writer = out
	if screen {
		stdout = &terminal{Writer: out, width: 100, colour: true}
	}
	c := &command{
		flags:     genericclioptions.NewConfigFlags(true),
		connect:   func() (client.Client, error) { return r, nil },
		clientset: func() (kubernetes.Interface, error) { return eventsOf(r), nil },
		now:       func() time.Time { return now }, after: time.After, filters: filters, out: stdout, errOut: out,
		scrape: func(_ context.Context, pod string) ([]byte, error) {
			if pod == "vernier-node-2" {
				return nil, fmt.Errorf("refused %s", escapes)
			}
			return []byte(strings.ReplaceAll(scraped, `"main"`, `"main`+escapes+`"`)), nil
		},
	}
	root := c.root()
	root.SetArgs(strings.Split(args, " "))
	return root.ExecuteContext(t.Context())
}

// However many events there are, each command asks for pages of those that it needs and says what
// it leaves out.
func TestHostileEventsAreLeftOut(t *testing.T) {
	var flood corev1.EventList
	for i := range eventlist.MaxEvents + 1 {
		flood.Items = append(flood.Items, *event(fmt.Sprint(i), "big", time.Minute, eventSource, "needs 90 %"))
	}
	text := must.Get(json.Marshal(flood))(t)
	for _, args := range []string{"-A", "waiting -A", "why big -n team-a", "fit -f testdata/pod.yaml"} {
		asked := 0
		r := fakeClient(t, fixture()...)
		var out, errOut bytes.Buffer
		c := &command{
			flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return now }, after: time.After, filters: filters, out: &out, errOut: &errOut,
			connect: func() (client.Client, error) { return r, nil },
			clientset: func() (kubernetes.Interface, error) {
				return events{api: objects.API(func(r *http.Request) (*http.Response, error) {
					asked++
					if q := r.URL.Query(); q.Get("limit") == "" || !strings.Contains(q.Get("fieldSelector"), "involvedObject.kind=Pod") || !strings.Contains(q.Get("fieldSelector"), "source="+eventSource) {
						t.Errorf("%s asks for %v", args, q)
					}
					return objects.Answer(http.StatusOK, bytes.NewReader(text)), nil
				})}, nil
			},
		}
		root := c.root()
		root.SetArgs(strings.Split(args, " "))
		if err := root.ExecuteContext(t.Context()); err != nil || asked != 1 || strings.Count(errOut.String(), "left out: events beyond the first 32768, or 64 MiB") != 1 {
			t.Errorf("%s: asks %d times, says %q, error %v", args, asked, errOut.String(), err)
		}
	}
}
