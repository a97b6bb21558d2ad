// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vernier.dev/vernier/test/cluster/image"
	"vernier.dev/vernier/test/cluster/tools"
)

// A guest is a queueing system or a controller of jobs that runs beside Vernier in some tests.
type guest struct {
	// program is its file among those of tools.Jobs.
	program string
	// render prints its manifests; the working directory has a copy of their folder.
	render                string
	namespace, deployment string
	// edits replace texts of the manifests, as pairs: on a small machine it gets what it needs, not what
	// a large cluster would.
	edits []string
	// probe is an object that its webhooks look at, where it has any.
	probe string
}

var guests = map[string]guest{
	"kueue": {
		program: "kueue", render: "kubectl kustomize kueue/default",
		namespace: "kueue-system", deployment: "kueue-controller-manager",
		edits: []string{"cpu: 500m", "cpu: 50m"},
		probe: "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: probe}",
	},
	"jobset": {
		program: "jobset", render: "kubectl kustomize jobset/default",
		namespace: "jobset-system", deployment: "jobset-controller-manager",
		edits: []string{"cpu: 500m", "cpu: 50m"},
		probe: "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: probe, namespace: default}",
	},
	"lws": {
		program: "cmd", render: "kubectl kustomize lws/default",
		namespace: "lws-system", deployment: "lws-controller-manager",
		edits: []string{"cpu: 1\n", "cpu: 50m\n", "replicas: 2", "replicas: 1"},
		probe: "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: probe, namespace: default}\nspec: {leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: main}]}}}}",
	},
	// Its JobSet is the guest of that name. It makes PodGroups of the coscheduling plugin where there are any.
	"trainer": {
		program: "trainer-controller-manager",
		render: "sed -i /third-party/d trainer/overlays/manager/kustomization.yaml; kubectl kustomize trainer/overlays/manager; " +
			"echo ---; cat coscheduling/crd.yaml",
		namespace: "kubeflow-system", deployment: "kubeflow-trainer-controller-manager",
		edits: []string{"image: vernier.local/trainer:1", "image: vernier.local/trainer:1\n        command: [/manager]"},
		probe: "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: probe, namespace: default}\nspec: {runtimeRef: {name: none}}",
	},
	// Its pods here have no Ray in them, which its own init containers and probes would ask.
	"kuberay": {
		program: "kuberay", render: "kubectl kustomize kuberay/default",
		namespace: "default", deployment: "kuberay-operator",
		edits: []string{"cpu: 100m", "cpu: 50m", "        name: kuberay-operator\n", `        name: kuberay-operator
        env:
        - {name: ENABLE_INIT_CONTAINER_INJECTION, value: "false"}
        - {name: ENABLE_PROBES_INJECTION, value: "false"}
`},
	},
}

// Guests are the names that InstallGuest takes, in an order in which they can be installed.
func Guests() []string { return []string{"kueue", "jobset", "lws", "trainer", "kuberay"} }

var (
	imageLine  = regexp.MustCompile(`(?m)image: \S+$`)
	pullPolicy = regexp.MustCompile(`imagePullPolicy: \w+`)
)

// InstallGuest installs a guest by its own manifests, with an image of the program that was built here, and
// returns when its webhooks answer. Edits replace texts of the manifests, as pairs.
func (s *System) InstallGuest(ctx context.Context, name string, edits ...string) error {
	g, known := guests[name]
	if !known {
		return fmt.Errorf("no guest %s: want one of %s", name, strings.Join(Guests(), ", "))
	}
	s.step("installing " + name)
	dirs, err := tools.Ensure(ctx, s.progress, tools.Jobs)
	if err != nil {
		return err
	}
	m := &image.Image{Name: "vernier.local/" + name + ":1", User: "65532:65532"}
	if err := m.AddFile("/manager", filepath.Join(dirs[0], g.program)); err != nil {
		return err
	}
	m.Dir("/tmp", 0o777)
	if err := s.AddImage(ctx, m); err != nil {
		return err
	}
	folder := filepath.Join(s.Cluster.Dir(), "guest-"+name)
	if err := errors.Join(os.RemoveAll(folder), os.CopyFS(folder, os.DirFS(filepath.Join(dirs[0], "manifests")))); err != nil {
		return err
	}
	text, err := s.Shell(ctx, "cd "+folder+" && "+g.render)
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	text = pullPolicy.ReplaceAllString(imageLine.ReplaceAllString(text, "image: "+m.Name), "imagePullPolicy: Never")
	text = strings.NewReplacer(slices.Concat(g.edits, edits)...).Replace(text)
	file := filepath.Join(folder, "all.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	in := "kubectl -n " + g.namespace
	if out, err := s.Shell(ctx, "kubectl apply --server-side -f "+file+" && "+in+" rollout status deployment/"+g.deployment+" --timeout="+patience.String()); err != nil {
		said, _ := s.Shell(ctx, in+" get pods,events; "+in+" logs deployment/"+g.deployment+" --tail=30")
		return fmt.Errorf("%w: %s\n%s", err, out, said)
	}
	if g.probe == "" {
		return nil
	}
	return s.await(ctx, "the webhooks of "+name+" to answer", func(ctx context.Context) error {
		out, err := s.Shell(ctx, "printf '"+g.probe+"\n' | kubectl create --dry-run=server -f -")
		if err != nil && !strings.Contains(out, "denied the request") && !strings.Contains(out, "is invalid") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}
