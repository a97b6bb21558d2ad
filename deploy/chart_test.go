// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// rendered is what a set of values makes of the chart.
type rendered struct {
	text    string
	objects []*unstructured.Unstructured
}

// helm is the program that tools/helm runs: to find it each time anew costs ten
// times what it does itself.
var helm = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "tool", "-n", "-modfile=tools/go.mod", "helm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

func render(t *testing.T, args ...string) (*rendered, error) {
	t.Helper()
	argv := append([]string{"template", "vernier", "chart", "--namespace=vernier-system"}, args...)
	program, err := helm()
	if err != nil {
		t.Fatalf("go tool -n helm: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), program, argv...).CombinedOutput()
	if err != nil {
		return &rendered{text: string(out)}, err
	}
	objects := must.Get(manifests.Parse(out))(t)
	return &rendered{string(out), objects}, nil
}

func (r *rendered) has(kind, name string) bool { return r.object(kind, name) != nil }

func (r *rendered) object(kind, name string) *unstructured.Unstructured {
	i := slices.IndexFunc(r.objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if i < 0 {
		return nil
	}
	return r.objects[i]
}

// pod is the only container of a part and the spec around it.
func (r *rendered) pod(t *testing.T, name string) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	for _, w := range workloads(t, r.objects) {
		if strings.HasSuffix(w.name, " "+name) {
			return w.template.Spec, w.template.Spec.Containers[0]
		}
	}
	t.Fatalf("no workload %s", name)
	return corev1.PodSpec{}, corev1.Container{}
}

// Whatever the values choose is rendered, and what it names is there.
func TestChartValues(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		check func(t *testing.T, r *rendered)
	}{
		"defaults": {nil, func(t *testing.T, r *rendered) {
			if r.has("Namespace", "vernier-system") {
				t.Error("the namespace is Helm's to make")
			}
			for _, part := range []string{"vernier-webhook", "vernier-allocator"} {
				pod, c := r.pod(t, part)
				if !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation ||
					!r.has("PodDisruptionBudget", part) {
					t.Errorf("%s is not confined: %+v %+v", part, pod.SecurityContext, c.SecurityContext)
				}
				// Two replicas that both fail must not keep a node from being drained.
				if policy, _, _ := unstructured.NestedString(r.object("PodDisruptionBudget", part).Object, "spec", "unhealthyPodEvictionPolicy"); policy != "AlwaysAllow" {
					t.Errorf("%s: unhealthyPodEvictionPolicy %q", part, policy)
				}
			}
			// Data that the chart has none of stays as the webhook wrote it when Helm or kubectl
			// applies the Secret once more; empty data would be written.
			secret := r.object("Secret", "vernier-webhook-certs")
			if _, data := secret.Object["data"]; data || strings.Contains(marshal(t, secret), "stringData") {
				t.Errorf("an upgrade would end the webhook's certificates: %v", secret)
			}
			// One node with a broken driver must not stop the upgrade of all others.
			agents := r.object("DaemonSet", "vernier-node").Object
			if most, _, _ := unstructured.NestedString(agents, "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"); !strings.HasSuffix(most, "%") {
				t.Errorf("an upgrade goes on with at most %q agents away", most)
			}
		}},
		"prices": {[]string{"--set=prices.H100=2.50,prices.NVIDIA A100-SXM4-80GB=3", "--set-json=prices.T4=0.35"}, func(t *testing.T, r *rendered) {
			got, _, _ := unstructured.NestedString(r.object("ConfigMap", "vernier-prices").Object, "data", "prices")
			if got != "H100=2.50\nNVIDIA A100-SXM4-80GB=3\nT4=0.35\n" {
				t.Errorf("%q", got)
			}
		}},
		"another registry": {[]string{"--set=image.registry=registry.example.com/gpu,image.tag=v2,image.pullSecrets={key}"}, func(t *testing.T, r *rendered) {
			pod, c := r.pod(t, "vernier-node")
			if c.Image != "registry.example.com/gpu/vernier-node:v2" || len(pod.ImagePullSecrets) != 1 || pod.ImagePullSecrets[0].Name != "key" {
				t.Errorf("image %s, secrets %v", c.Image, pod.ImagePullSecrets)
			}
		}},
		"a driver container": {[]string{"--set=driver.root=/run/nvidia/driver"}, func(t *testing.T, r *rendered) {
			pod, c := r.pod(t, "vernier-node")
			if !slices.Contains(c.Args, "--driver-root=/run/nvidia/driver") || strings.Contains(strings.Join(c.Args, " "), "--host-driver-root") {
				t.Errorf("arguments %q", c.Args)
			}
			for _, v := range pod.Volumes {
				if v.HostPath.Path == "/" {
					t.Error("the node's root is mounted although the driver is not there")
				}
			}
		}},
		"more flags": {[]string{"--set=webhook.args={--v=2},allocator.args={--v=2,--page-bind-address=0},node.args={--v=2}"}, func(t *testing.T, r *rendered) {
			for part, last := range map[string]string{"vernier-webhook": "--v=2", "vernier-allocator": "--page-bind-address=0", "vernier-node": "--v=2"} {
				if _, c := r.pod(t, part); len(c.Args) == 0 || c.Args[len(c.Args)-1] != last {
					t.Errorf("%s: arguments %q", part, c.Args)
				}
			}
		}},
		"preemption": {nil, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-allocator"); !slices.Equal(c.Args, []string{"--preemption=LowerPriority", "--reserve-after=10m", "--lookahead=1h", "--idle-after=30m"}) {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"priorities": {[]string{"--set=allocator.priorityClasses={production,urgent}"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-allocator"); !slices.Contains(c.Args, "--priority-classes=production,urgent") {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"no preemption": {[]string{"--set=allocator.preemption=Never,allocator.reserveAfter=0s"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-allocator"); !slices.Equal(c.Args, []string{"--preemption=Never", "--reserve-after=0s", "--lookahead=1h", "--idle-after=30m"}) {
				t.Errorf("arguments %q", c.Args)
			}
			if strings.Contains(marshal(t, r.object("ClusterRole", "vernier-allocator")), "pods/eviction") {
				t.Error("the allocator may evict pods, and need not")
			}
		}},
		"over-commitment": {[]string{"--set=overcommit.core[0].nodeSelector.pool=a,overcommit.core[0].nodeSelector.zone=b,overcommit.core[0].percent=150,overcommit.core[1].percent=120"}, func(t *testing.T, r *rendered) {
			_, c := r.pod(t, "vernier-allocator")
			if !slices.Contains(c.Args, "--overcommit-core=pool=a,zone=b:150") || !slices.Contains(c.Args, "--overcommit-core=:120") {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"moves": {[]string{"--set=allocator.preemption=Never,defragment.after=15m,defragment.perHour=2"}, func(t *testing.T, r *rendered) {
			_, c := r.pod(t, "vernier-allocator")
			for _, arg := range []string{"--defragment-after=15m", "--defragment-max-pods=3", "--defragment-per-hour=2"} {
				if !slices.Contains(c.Args, arg) {
					t.Errorf("arguments %q", c.Args)
				}
			}
			if !strings.Contains(marshal(t, r.object("ClusterRole", "vernier-allocator")), "pods/eviction") {
				t.Error("the allocator may evict no pods")
			}
		}},
		"holders end": {[]string{"--set=node.endDeviceHolders=true"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-node"); !slices.Contains(c.Args, "--end-device-holders") {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"memory is lent": {[]string{"--set=node.lendMemory=true"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-node"); !slices.Contains(c.Args, "--lend-memory") {
				t.Errorf("arguments %v", c.Args)
			}
		}},
		"the unenforced end": {[]string{"--set=node.endUnenforced=true"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-node"); !slices.Contains(c.Args, "--end-unenforced") || slices.Contains(c.Args, "--end-device-holders") {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"RDMA": {[]string{"--set=node.injectRDMA=true"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-node"); !slices.Contains(c.Args, "--inject-rdma") {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"CPUs beside the GPU": {[]string{"--set=node.numaBinding=true"}, func(t *testing.T, r *rendered) {
			if _, c := r.pod(t, "vernier-node"); !slices.Contains(c.Args, "--numa-binding") {
				t.Errorf("arguments %q", c.Args)
			}
		}},
		"cert-manager": {[]string{"--set=webhook.certificate.source=cert-manager"}, func(t *testing.T, r *rendered) {
			hook := r.object("MutatingWebhookConfiguration", "vernier-webhook")
			const from = "cert-manager.io/inject-ca-from"
			if hook.GetAnnotations()[from] != "vernier-system/vernier-webhook" || r.object("ValidatingWebhookConfiguration", "vernier-webhook").GetAnnotations()[from] != "vernier-system/vernier-webhook" || !r.has("Certificate", "vernier-webhook") || !r.has("Issuer", "vernier-webhook") {
				t.Errorf("cert-manager is not told to make the certificate: %v", hook.GetAnnotations())
			}
			if self, found, _ := unstructured.NestedMap(r.object("Issuer", "vernier-webhook").Object, "spec", "selfSigned"); found {
				t.Errorf("every renewal would change the caBundle before the webhook has its new certificate: %v", self)
			}
			pod, c := r.pod(t, "vernier-webhook")
			if pod.Volumes[0].Secret.SecretName != "vernier-webhook-certificate" || !slices.Contains(c.Args, "--cert-dir=/certificate") {
				t.Errorf("the webhook does not use it: %v %q", pod.Volumes, c.Args)
			}
			// What only the webhook's own certificates need.
			if r.has("Role", "vernier-webhook") || r.has("Secret", "vernier-webhook-certs") || strings.Contains(marshal(t, r.object("ClusterRole", "vernier-webhook")), "patch") {
				t.Error("the webhook may write Secrets or its configuration, and need not")
			}
			// It compares it with its flags, whoever makes the certificate.
			if !strings.Contains(marshal(t, r.object("ClusterRole", "vernier-webhook")), "mutatingwebhookconfigurations") {
				t.Error("the webhook may not read its configuration")
			}
		}},
		"an issuer of cert-manager": {[]string{"--set=webhook.certificate.source=cert-manager", "--set=webhook.certificate.issuerRef.kind=ClusterIssuer,webhook.certificate.issuerRef.name=corp"}, func(t *testing.T, r *rendered) {
			name, _, _ := unstructured.NestedString(r.object("Certificate", "vernier-webhook").Object, "spec", "issuerRef", "name")
			if name != "corp" || strings.Contains(r.text, "kind: Issuer") {
				t.Errorf("issuer %q, or one more is made", name)
			}
		}},
		"a Secret": {[]string{"--set=webhook.certificate.source=secret,webhook.certificate.secretName=mine,webhook.certificate.caBundle=Y2E="}, func(t *testing.T, r *rendered) {
			pod, _ := r.pod(t, "vernier-webhook")
			if pod.Volumes[0].Secret.SecretName != "mine" || !strings.Contains(marshal(t, r.object("MutatingWebhookConfiguration", "vernier-webhook")), "caBundle: Y2E=") ||
				!strings.Contains(marshal(t, r.object("ValidatingWebhookConfiguration", "vernier-webhook")), "caBundle: Y2E=") {
				t.Errorf("volumes %v", pod.Volumes)
			}
		}},
		"no extras": {[]string{"--set=crds.install=false,priorityQuota.create=false,podDisruptionBudget.create=false,networkPolicy.create=false"}, func(t *testing.T, r *rendered) {
			for _, o := range r.objects {
				if slices.Contains([]string{"CustomResourceDefinition", "ResourceQuota", "PodDisruptionBudget", "NetworkPolicy"}, o.GetKind()) {
					t.Errorf("%s %s is there", o.GetKind(), o.GetName())
				}
			}
		}},
		"admission for some": {[]string{"--set=webhook.allowFrom={10.0.0.0/24,fd00::/64}"}, func(t *testing.T, r *rendered) {
			policy := r.object("NetworkPolicy", "vernier-webhook")
			rules, _, _ := unstructured.NestedSlice(policy.Object, "spec", "ingress")
			want := []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/24"}}, map[string]any{"ipBlock": map[string]any{"cidr": "fd00::/64"}}}
			if from := rules[0].(map[string]any)["from"]; !reflect.DeepEqual(from, want) {
				t.Errorf("admission from %v, want %v", from, want)
			}
		}},
		"rules for shares": {[]string{"--set=webhook.minimumShare.memMiB=512,webhook.minimumShare.percent=5,webhook.allowedHostPaths={/data/m.1,/mnt}"}, func(t *testing.T, r *rendered) {
			_, c := r.pod(t, "vernier-webhook")
			if want := []string{"--min-share-mem-mib=512", "--min-share-percent=5", "--allowed-host-paths=/data/m.1,/mnt"}; !slices.Equal(c.Args, want) {
				t.Errorf("arguments %q, want %q", c.Args, want)
			}
			policy := strings.ReplaceAll(strings.Join(strings.Fields(marshal(t, r.object("ValidatingAdmissionPolicy", "vernier-pods"))), " "), "''", "'")
			if !strings.Contains(policy, `p.matches(r'^(/data/m\.1|/mnt)(/|$)')`) || strings.Contains(policy, "/etc/ssh") {
				t.Errorf("the policy has other folders than the webhook: %s", policy)
			}
		}},
		"compute of namespaces": {[]string{`--set-json=webhook.computeShares={"team-b":"required","team-a":20,"team-c":0,"*":5}`, "--set=webhook.minimumShare.percent=5"}, func(t *testing.T, r *rendered) {
			_, c := r.pod(t, "vernier-webhook")
			if want := "--compute-shares=*=5,team-a=20,team-b=required,team-c=0"; !slices.Contains(c.Args, want) {
				t.Errorf("arguments %q, want %q", c.Args, want)
			}
		}},
		"metrics for some": {[]string{`--set-json=networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"a":"b"}}}]`}, func(t *testing.T, r *rendered) {
			if text := marshal(t, r.object("NetworkPolicy", "vernier-node")); !strings.Contains(text, "namespaceSelector") || !strings.Contains(text, "component: allocator") {
				t.Errorf("the policy is\n%s", text)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := render(t, tt.args...)
			if err != nil {
				t.Fatalf("%v: %s", err, r.text)
			}
			checkReferences(t, r.objects)
			tt.check(t, r)
		})
	}
}

// A value that cannot be is refused with its name.
func TestChartRefuses(t *testing.T) {
	for set, says := range map[string]string{
		"webhook.replica=3":                                             "replica",
		"webhook.replicas=0":                                            "webhook/replicas",
		"webhook.allowFrom={10.0.0.1}":                                  "webhook/allowFrom/0",
		"webhook.allowedHostPaths={data}":                               "webhook/allowedHostPaths/0",
		"webhook.allowedHostPaths={/a/../}":                             "webhook/allowedHostPaths/0",
		"webhook.minimumShare.percent=101":                              "webhook/minimumShare/percent",
		"webhook.computeShares.team-a=101":                              "webhook/computeShares/team-a",
		"webhook.computeShares.team-a=needed":                           "webhook/computeShares/team-a",
		"webhook.computeShares.Team=20":                                 "webhook/computeShares",
		"webhook.computeShares.team-a=4,webhook.minimumShare.percent=5": "webhook.computeShares.team-a: 4 is below webhook.minimumShare.percent",
		"allocator.priorityClassName=":                                  "allocator/priorityClassName",
		"allocator.preemption=never":                                    "allocator/preemption",
		"allocator.priorityClasses={Production}":                        "allocator/priorityClasses/0",
		"overcommit.core[0].percent=100":                                "overcommit/core/0",
		"defragment.after=15":                                           "defragment/after",
		"defragment.maxPods=0":                                          "defragment/maxPods",
		"idle.after=30":                                                 "idle/after",
		"allocator.reserveAfter=10":                                     "allocator/reserveAfter",
		"node.nriDir=nri":                                               "node/nriDir",
		"node.stateDir=/var/lib/../vernier":                             "node/stateDir",
		"webhook.certificate.issuerRef.kind=ClusterIssuer,webhook.certificate.source=cert-manager": "certificate/issuerRef",
		"webhook.certificate.secretName=My Secret":                                                 "certificate/secretName",
		"image.registry=http://registry.example.com":                                               "image/registry': value must be 'a host and a path without https://",
		"image.registry=registry.example.com//gpu":                                                 "image/registry",
		"image.pullPolicy=Sometimes":                                                               "image/pullPolicy",
		"webhook.certificate.source=vault":                                                         "certificate/source",
		"webhook.certificate.source=secret":                                                        "webhook.certificate.caBundle: the PEM bundle",
		"webhook.certificate.caBundle=not base!":                                                   "certificate/caBundle",
		"prices.H100=-1":                                                                           "prices/H100",
		"prices.H100=cheap":                                                                        "prices/H100",
		"prices.H100=0x1":                                                                          "prices/H100",
		"node.args={v}":                                                                            "node/args/0",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			if r, err := render(t, "--set="+set); err == nil || !strings.Contains(r.text, says) {
				t.Errorf("%v: %s\nwant %q", err, r.text, says)
			}
		})
	}
	if r, err := render(t, "--namespace=elsewhere"); err == nil || !strings.Contains(r.text, "must be vernier-system") {
		t.Errorf("another namespace: %v: %s", err, r.text)
	}
}

// The chart, the images, the kustomization, the page on the installation and what make stamps into the
// programs are of one version.
func TestOneVersion(t *testing.T) {
	var chart struct{ Version, AppVersion string }
	text := must.Get(os.ReadFile("chart/Chart.yaml"))(t)
	must.Do(t, yaml.Unmarshal(text, &chart))
	dockerfile := must.Get(os.ReadFile("../Dockerfile"))(t)
	if want := `org.opencontainers.image.version="` + chart.AppVersion + `"`; chart.Version != chart.AppVersion || !strings.Contains(string(dockerfile), want) {
		t.Errorf("the chart is %s of application %s, the Dockerfile has no %s", chart.Version, chart.AppVersion, want)
	}
	for _, image := range kustomize(t).Images {
		if image.NewTag != chart.AppVersion {
			t.Errorf("kustomization.yaml: %s has tag %s, the chart is of %s", image.Name, image.NewTag, chart.AppVersion)
		}
	}
	install := must.Get(os.ReadFile("../docs/install.md"))(t)
	if !strings.Contains(string(install), "/vernier-node:"+chart.AppVersion+"`") {
		t.Errorf("docs/install.md pushes another image than vernier-node:%s", chart.AppVersion)
	}
	plan := must.Get(exec.CommandContext(t.Context(), "make", "-C", "..", "--dry-run", "programs", "go-build", "limiter").Output())(t)
	for line := range strings.Lines(string(plan)) {
		if strings.Contains(line, "go build") && !strings.Contains(line, "api/version.stamp="+chart.AppVersion) {
			t.Errorf("make does not stamp version %s: %s", chart.AppVersion, line)
		}
	}
}

func marshal(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	text := must.Get(yaml.Marshal(o.Object))(t)
	return string(text)
}
