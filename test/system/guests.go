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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/test/cluster/image"
	"vernier.dev/vernier/test/cluster/pki"
	"vernier.dev/vernier/test/cluster/tools"
)

// A guest is a queueing system or a controller of jobs that runs beside Vernier in some tests.
type guest struct {
	// tool has its programs; tools.Jobs where it has no name.
	tool tools.Tool
	// program and deployment are one or more, with spaces between. The first program is the image's /manager too.
	program string
	// render prints its manifests; the working directory has a copy of their folder.
	render                string
	namespace, deployment string
	// edits replace texts of the manifests, as pairs: on a small machine it gets what it needs, not what
	// a large cluster would.
	edits []string
	// probe is an object that its webhooks look at, where it has any.
	probe string
	// secret and service name the certificate of its webhooks, where it makes none itself.
	secret, service string
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
	// A Job of its own would make the certificate, with openssl.
	"volcano": {
		tool: tools.Volcano, program: "webhook-manager controller-manager scheduler",
		render: `sed -e '/^# Source: .*admission-init.yaml/,/^---/d' ` +
			`-e 's,^\( *\)image: .*/vc-\(.*\):.*,&\n\1command: [/\2],' volcano/volcano-development.yaml`,
		namespace: "volcano-system", deployment: "volcano-admission volcano-controllers volcano-scheduler",
		probe:  "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: probe}\nspec: {weight: 1}",
		secret: "volcano-admission-secret", service: "volcano-admission-service",
	},
}

// Guests are the names that InstallGuest takes, in an order in which they can be installed: Kueue 0.19 refuses the jobs
// of a Trainer that comes later.
func Guests() []string { return []string{"jobset", "lws", "trainer", "kuberay", "volcano", "kueue"} }

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
	if g.tool.Name == "" {
		g.tool = tools.Jobs
	}
	dirs, err := tools.Ensure(ctx, s.progress, g.tool)
	if err != nil {
		return err
	}
	m := &image.Image{Name: "vernier.local/" + name + ":1", User: "65532:65532"}
	programs := strings.Fields(g.program)
	for _, program := range programs {
		if err := m.AddFile("/"+program, filepath.Join(dirs[0], program)); err != nil {
			return err
		}
	}
	m.Link("/manager", programs[0])
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
	certificate, err := g.certificate()
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "all.yaml")
	if err := os.WriteFile(file, []byte(text+certificate), 0o644); err != nil {
		return err
	}
	in := "kubectl -n " + g.namespace
	out, err := s.Shell(ctx, "kubectl apply --server-side -f "+file)
	for _, deployment := range strings.Fields(g.deployment) {
		if err == nil {
			out, err = s.Shell(ctx, in+" rollout status deployment/"+deployment+" --timeout="+patience.String())
		}
		if err != nil {
			said, _ := s.Shell(ctx, in+" get pods,events; "+in+" logs deployment/"+deployment+" --tail=30")
			return fmt.Errorf("%w: %s\n%s", err, out, said)
		}
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

// certificate is the Secret of that name, or nothing.
func (g guest) certificate() (string, error) {
	if g.secret == "" {
		return "", nil
	}
	ca, err := pki.NewAuthority(g.service)
	if err != nil {
		return "", err
	}
	server, err := ca.Issue(g.service, nil, g.service+"."+g.namespace+".svc")
	if err != nil {
		return "", err
	}
	object, err := yaml.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: g.secret, Namespace: g.namespace},
		Data:       map[string][]byte{"ca.crt": ca.Cert, "tls.crt": server.Cert, "tls.key": server.Key},
	})
	return "\n---\n" + string(object), err
}
