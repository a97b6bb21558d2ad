// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// watching runs a command, and what happens between its looks, until there is
// nothing more to happen.
func watching(t *testing.T, out io.Writer, r client.Client, args string, between ...func()) error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := &command{flags: genericclioptions.NewConfigFlags(true), connect: func() (client.Client, error) { return r, nil },
		clientset: func() (kubernetes.Interface, error) { return eventsOf(r), nil }, now: func() time.Time { return now }, out: out, errOut: out}
	c.after = func(d time.Duration) <-chan time.Time {
		next := make(chan time.Time, 1)
		if len(between) == 0 {
			stop()
			return next
		}
		between[0]()
		between = between[1:]
		next <- now.Add(d)
		return next
	}
	root := c.root()
	root.SetArgs(strings.Fields(args))
	return root.ExecuteContext(ctx)
}

func TestWatch(t *testing.T) {
	cluster := fakeClient(t, &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}})
	var out bytes.Buffer
	more := func() {
		must.Do(t, cluster.Create(t.Context(), &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-2"}}))
	}
	must.Do(t, watching(t, &out, cluster, "nodes --watch", more))
	first, second, _ := strings.Cut(out.String(), "\n\n")
	if strings.Contains(first, "gpu-2") || !strings.Contains(second, "gpu-2") || !strings.HasPrefix(second, "NAME") {
		t.Errorf("printed\n%s", out.String())
	}

	out.Reset()
	must.Do(t, watching(t, &terminal{Writer: &out, width: 12}, cluster, "nodes -w"))
	if text := out.String(); !strings.HasPrefix(text, clear+"NAME") || strings.Contains(text, red) {
		t.Errorf("on a screen: %q", text)
	}
	if err := watching(t, io.Discard, cluster, "nodes -w -o json"); err == nil || !strings.Contains(err.Error(), "--watch is for people") {
		t.Errorf("as JSON: %v", err)
	}
	if err := watching(t, io.Discard, failing{cluster, errors.New("connection refused")}, "nodes -w"); err == nil {
		t.Error("an error is not said")
	}
}

// Cells that are too long for the screen go on below themselves, and what matters is in
// colour.
func TestTerminal(t *testing.T) {
	cluster := fakeClient(t, fixture()...)
	var out bytes.Buffer
	must.Do(t, watching(t, &terminal{Writer: &out, width: 80, colour: true}, cluster, "devices"))
	want := []string{
		bold + "NODE  IDX  UUID      MODEL   CORE    MEM(MiB)     SLICES  MIG          HEALTH" + plain,
		bold + "                             (%)" + plain,
		"gpu-  0    GPU-      NVIDIA  30/100  20481/81920  3       disabled     " + green + "ok" + plain,
		"1          aaaaaaaa  A100-",
		"                     SXM4-",
		"                     80GB",
		"gpu-  1    GPU-      NVIDIA  0/100   0/81920      0       disabled     " + red + "unhealthy" + plain,
	}
	if got := strings.TrimPrefix(out.String(), clear); !strings.HasPrefix(got, strings.Join(want, "\n")+"\n") {
		t.Errorf("got\n%s", got)
	}
	if screen(&bytes.Buffer{}) != nil {
		t.Error("a buffer is taken for a screen")
	}
}

// realistic is a cluster of eight nodes with the long names of a cloud.
func realistic() []client.Object {
	var all []client.Object
	for n := range 8 {
		l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-10-120-33-%d.eu-central-1.compute.internal", 101+n)}}
		ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}
		if n == 7 {
			ready.Status = metav1.ConditionUnknown
		}
		l.Status.Conditions = []metav1.Condition{ready}
		all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.Name}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.120.33.%d", 101+n)}}}}, l)
		for i := range int32(8) {
			uuid := fmt.Sprintf("GPU-%08x-89ab-4cde-8f01-23456789abcd", 0x5b3c0000+int32(n)*8+i)
			pod := fmt.Sprintf("llama-finetune-worker-7f9c6d5b8d-%02dx%dz", n, i)
			l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: i, Model: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
				Mem: 97287, PCI: fmt.Sprintf("0000:%02x:00.0", i), MIG: v1alpha1.MIGDisabled, Healthy: i != 7, Reason: "Xid 79: the GPU has fallen off the bus"})
			l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 97287, Slices: []v1alpha1.Slice{
				{Pod: types.UID(pod), Owner: "machine-learning-platform/" + pod, Ctr: "inference-server", Core: 65, Mem: 65536, Mode: v1alpha1.ModeLimiter}}})
			l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: types.UID(pod), Ctr: "inference-server", UUID: uuid, Container: pod,
				Mode: v1alpha1.ModeLimiter, Memory: v1alpha1.GuaranteeDriver, Compute: v1alpha1.GuaranteeCooperative})
		}
		l.Spec.Cordons = []v1alpha1.Cordon{{UUID: l.Status.Devices[7].UUID, By: "ann", Since: metav1.NewTime(now)}}
		waits := gated("machine-learning-platform", fmt.Sprintf("llama-pretrain-launcher-%d-5q8zt", n), 26*time.Hour,
			`{"version":"v1alpha1","containers":{"trainer":{"gpus":8,"core":100,"memMiB":97287}}}`, "kueue.x-k8s.io/admission")
		all = append(all, waits, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: waits.Name, Namespace: waits.Namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: waits.Namespace, Name: waits.Name, UID: waits.UID}, Source: corev1.EventSource{Component: eventSource},
			LastTimestamp: metav1.NewTime(now), Message: "needs 100 % compute and 97,287 MiB on each of 8 GPUs; nearest: " + l.Name + " GPU 0 has 35 % and 31,751 MiB free"})
	}
	return all
}

// ordinary is the fixture with the names that most have.
func ordinary(t *testing.T) []client.Object {
	objects := append(classFixture(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: quotaName, Labels: map[string]string{v1alpha1.LabelGPULimit: "2.5"}},
		Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{"requests.vernier.dev/gpu-core": resource.MustParse("250")}}})
	for _, o := range objects {
		text := must.Get(json.Marshal(o))(t)
		text = []byte(ordinaryNames.Replace(string(text)))
		must.Do(t, json.Unmarshal(text, o))
	}
	return objects
}

var ordinaryNames = strings.NewReplacer("team-a/train", "team-vision/train-7d9f8b6c5-x2v9q", `"train"`, `"train-7d9f8b6c5-x2v9q"`,
	`\"main\"`, `\"trainer\"`, "team-a", "team-vision", "team-b", "team-language", "gpu-1", "gpu-node-01", "gpu-2", "gpu-node-02", `"main"`, `"trainer"`, "Tesla T4", "NVIDIA A100-SXM4-80GB")

var longNames = strings.NewReplacer("gpu-1", "ip-10-120-33-101.eu-central-1.compute.internal", "team-a", "machine-learning-platform",
	`"train"`, `"llama-finetune-worker-7f9c6d5b8d-00x0z"`, `"main"`, `"inference-server"`)

// No table loses a column or breaks a word on a screen of 80: no line is longer, and each word of each
// cell is there.
func TestTablesFitTheScreen(t *testing.T) {
	common := []string{"-A", "nodes", "devices", "slices -A", "waiting -A", "defrag", "inspect", "inspect --unit MiB", "top -A", "fit -f testdata/pod.yaml",
		"explain --dialects all --nvidia-replicas 4 -f testdata/manifests/workloads.yaml"}
	for _, of := range []struct {
		names   *strings.Replacer
		objects []client.Object
		more    []string
	}{
		{longNames, realistic(), []string{"why llama-pretrain-launcher-0-5q8zt -n machine-learning-platform"}},
		{ordinaryNames, ordinary(t), []string{"-n team-vision", "classes", "why big -n team-vision", "why gold -n team-vision"}},
	} {
		cluster := fakeClient(t, append(of.objects, agent("vernier-node-1", "gpu-1"))...)
		for _, args := range append(common, of.more...) {
			print := func(width int) string {
				var out bytes.Buffer
				c := &command{flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return now },
					scrape:  func(context.Context, string) ([]byte, error) { return []byte(of.names.Replace(scraped)), nil },
					filters: filters,
					out:     &terminal{Writer: &out, width: width}, errOut: io.Discard,
					connect:   func() (client.Client, error) { return cluster, nil },
					clientset: func() (kubernetes.Interface, error) { return eventsOf(cluster), nil }}
				root := c.root()
				root.SetArgs(strings.Fields(args))
				if err := root.ExecuteContext(t.Context()); err != nil && !strings.HasPrefix(args, "fit") { // it would wait
					t.Fatalf("%s: %v", args, err)
				}
				return out.String()
			}
			const width = 80
			whole, fitted := print(0), print(width)
			long := map[string]bool{}
			for line := range strings.Lines(whole) {
				long[line] = true
			}
			tables := false
			for line := range strings.Lines(fitted) {
				// What stands outside of tables is the terminal's to break.
				n := utf8.RuneCountInString(line) - 1
				if tables = tables || !long[line]; n > width && (!long[line] || !strings.Contains(line, ": ")) {
					t.Errorf("%s: %d characters on a screen of %d: %s", args, n, width, line)
				}
			}
			if !tables {
				t.Errorf("%s: nothing had to be fitted", args)
			}
			if got, want := characters(fitted), characters(whole); !maps.Equal(got, want) {
				t.Errorf("%s: on a screen of %d the tables have other characters than without one:\n%s", args, width, fitted)
			}
			if strings.HasPrefix(args, "inspect") { // gpushare's form has no room for eight GPUs
				continue
			}
			if diff := cmp.Diff(words(whole), words(fitted)); diff != "" {
				t.Errorf("%s: words on a screen of %d (-whole +fitted): %s\n%s", args, width, diff, fitted)
			}
			t.Logf("%s: %d wide\n%s", args, width, fitted)
		}
	}
}

// characters counts the characters of a text, without spaces and inspect's line.
func characters(text string) map[rune]int {
	n := map[rune]int{}
	for line := range strings.Lines(text) {
		if strings.Trim(line, "-\n") == "" {
			continue
		}
		for _, r := range line {
			n[r]++
		}
	}
	delete(n, ' ')
	delete(n, '\n')
	return n
}

var word = regexp.MustCompile(`\[[#.]{5}\]|[\pL\pN]+`)

// words counts the words and bars of a text.
func words(text string) map[string]int {
	n := map[string]int{}
	for _, w := range word.FindAllString(text, -1) {
		n[w]++
	}
	return n
}

// Documents for machines are never fitted.
func TestTerminalLeavesDocuments(t *testing.T) {
	var out bytes.Buffer
	cluster := fakeClient(t, fixture()...)
	c := &command{flags: genericclioptions.NewConfigFlags(true), now: time.Now, out: &terminal{Writer: &out, width: 10, colour: true}, errOut: &out,
		connect:   func() (client.Client, error) { return cluster, nil },
		clientset: func() (kubernetes.Interface, error) { return eventsOf(cluster), nil }}
	root := c.root()
	root.SetArgs([]string{"nodes", "-o", "json"})
	must.Do(t, root.ExecuteContext(t.Context()))
	if !json.Valid(out.Bytes()) || !strings.Contains(out.String(), "view.vernier.dev/v1") {
		t.Errorf("printed %s", out.String())
	}
}
