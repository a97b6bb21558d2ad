// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/test/must"
)

func TestExplain(t *testing.T) {
	const everything = "-f testdata/manifests/workloads.yaml --dialects all --nvidia-replicas 4"
	for name, c := range map[string]struct{ args, err string }{
		"explain":         {everything, ""},
		"explain.json":    {everything + " -o json", ""},
		"explain-none":    {"-f testdata/manifests/workloads.yaml", ""},
		"explain-refused": {"-f testdata/manifests --dialects gpu-manager,hami", "2 of 11 pods would be refused"},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := run(t, nil, "explain "+c.args)
			if text := errorText(err); text != c.err {
				t.Errorf("error %q, want %q", text, c.err)
			}
			golden(t, name, "explain "+c.args, out)
		})
	}
}

// Standard input, and what cannot be explained.
func TestExplainInput(t *testing.T) {
	for args, c := range map[string]struct{ stdin, out, err string }{
		"-f -": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {limits: {vernier.dev/gpu-core: 7}}}]}", "Pod/p    admitted   -         a           1      7             7 %", ""},
		"-f - --dialects all": {`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "annotations": {"vernier.dev/mode": "mig"}},
			"spec": {"template": {"spec": {"containers": [{"name": "a", "resources": {"limits": {"vernier.dev/gpu-core": 7}}}]}}}}`,
			"metadata.annotations[vernier.dev/mode]: has no effect here: move it to spec.template.metadata.annotations", ""},
		"-f - --dialects volcano": {"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  tasks:\n" +
			"  - {name: master, template: {spec: {containers: [{name: a}]}}}\n" +
			"  - {name: worker, template: {spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}}\n",
			"Job/j: warning: spec.schedulerName: volcano stays, since task master asks for no GPU: where that scheduler is gone it waits for ever", ""},
		"-f - --dialects=volcano": {"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec:\n  pytorchReplicaSpecs:\n" +
			"    Master: {template: {spec: {schedulerName: volcano, containers: [{name: a}]}}}\n" +
			"    Worker: {template: {spec: {schedulerName: volcano, containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}}\n",
			"PyTorchJob/j spec.pytorchReplicaSpecs.Master.template: warning: spec.schedulerName: volcano stays, since the pod asks for no GPU", ""},
		"-f - --dialects hami --renamed-resource nvidia.com/gpu=nvidia.com/vgpu --renamed-resource nvidia.com/gpumem=a.b/m": {
			"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {limits: {nvidia.com/vgpu: 2, a.b/m: 300}}}]}",
			"Pod/p    admitted   hami      a           2      -             300 MiB", ""},
		"-f - --renamed-resource a=b":  {"", "", "is no name of HAMi's or Volcano's"},
		"-f - -o yaml":                 {"", "items: []", ""},
		"":                             {"", "", "-f FILE"},
		"-f missing.yaml":              {"", "", "missing.yaml"},
		"-f testdata/manifests/none/":  {"", "", "no such file"},
		"-f - --dialects klingon":      {"", "", `"klingon" is unknown`},
		"-f - --gpushare-unit TB":      {"", "", "--gpushare-unit"},
		"-f - -o table":                {"", "", "--output"},
		"-f testdata/waiting.yaml -A ": {"", "", ""},
		"-f - --no-headers":            {"a: [", "", "standard input: document 1"},
	} {
		input = strings.NewReader(c.stdin)
		out, _, err := run(t, nil, "explain "+args)
		if !strings.Contains(out, c.out) || (err != nil) != (c.err != "") || !strings.Contains(errorText(err), c.err) {
			t.Errorf("explain %s: %q, error %v", args, out, err)
		}
	}
}

// The shell proposes commands and the words of flags.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{"__complete insp": "inspect", "__complete nodes -o ": "wide", "__complete explain --dialects ": "gpushare",
		"__complete inspect --unit ": "MiB", "completion bash": "__start_kubectl-vernier"} {
		fields := strings.Fields(args)
		if strings.HasSuffix(args, " ") {
			fields = append(fields, "")
		}
		var out strings.Builder
		root := (&command{flags: genericclioptions.NewConfigFlags(true), out: &out, errOut: io.Discard}).root()
		root.SetArgs(fields)
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q proposes %q, want %s: %v", args, out.String(), want, err)
		}
	}
}

// A mistyped subcommand is answered with the one that may be meant.
func TestSuggestsCommands(t *testing.T) {
	_, _, err := run(t, nil, "slcies")
	if said := errorText(err); !strings.Contains(said, `unknown command "slcies"`) || !strings.Contains(said, "Did you mean this?\n\tslices\n") {
		t.Errorf("%q", said)
	}
}

func TestHelp(t *testing.T) {
	if out, _, err := run(t, nil, "help why"); err != nil || !strings.Contains(out, "kubectl vernier why [KIND] NAME") {
		t.Errorf("%q %v", out, err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Folders below a folder are read with -R only.
func TestExplain_WhenFoldersAreNested_RReadsThem(t *testing.T) {
	folder := t.TempDir()
	pod := must.Get(os.ReadFile("testdata/pod.yaml"))(t)
	must.Do(t, os.MkdirAll(filepath.Join(folder, "a", "b"), 0o755))
	must.Do(t, os.WriteFile(filepath.Join(folder, "a", "b", "pod.yml"), pod, 0o644))
	_, _, err := run(t, nil, "explain -f "+folder)
	if err == nil || !strings.HasSuffix(err.Error(), "no *.yaml, *.yml or *.json in the folder; -R looks into folders below it") {
		t.Errorf("without -R: %v", err)
	}
	must.Do(t, os.WriteFile(filepath.Join(folder, "pod.json"), must.Get(yaml.YAMLToJSON(pod))(t), 0o644))
	for args, want := range map[string]int{"": 1, " -R": 2, " --recursive": 2} {
		out, errOut, err := run(t, nil, "explain -f "+folder+args)
		if err != nil || strings.Count(out, "Pod/small") != want || errOut != "No cluster was asked: what quotas, policies and the namespace's label say is not known. kubectl vernier fit asks.\n" {
			t.Errorf("%q: %s, stderr %q, error %v; want %d pods", args, out, errOut, err, want)
		}
	}
}
