// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package installed

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// hamiPod is as HAMi's users write it; it tells what it finds.
const hamiPod = `
apiVersion: v1
kind: Pod
metadata:
  name: migrated
  annotations: {nvidia.com/use-gputype: A100, hami.io/vulkan: "true"}
spec:
  schedulerName: hami-scheduler
  dnsPolicy: Default
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [/bin/sh, -c, "env | grep CUDA_DEVICE; exec /bin/cudademo --hold"]
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}
`

// migrate switches HAMi's dialect on as docs/migrate.md says, and runs a pod of
// HAMi's as it is. The scheduler that it names is not there, nor is any node that
// has its resources.
func migrate(t *testing.T, image string) {
	t.Helper()
	doc := must.Get(os.ReadFile("../../../docs/migrate.md"))(t)
	upgrade := regexp.MustCompile(`(?s)helm upgrade vernier.*?dialects\.enabled=\{hami\}'`).FindString(string(doc))
	if upgrade == "" {
		t.Fatal("docs/migrate.md does not switch HAMi's dialect on")
	}
	run(t, upgrade+" --timeout="+patience.String())
	apply := "2>&1 <<'EOF'" + strings.ReplaceAll(hamiPod, "IMAGE", image) + "EOF"
	// The webhook that leaves answers for some seconds more, now and then.
	await(t, "only the new webhook to be there", func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, "kubectl -n vernier-system get pods -l app.kubernetes.io/component=webhook -o name")
		return err == nil && strings.Count(out, "pod/") == 2, out
	})
	await(t, "the dialect to be in force", func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, "kubectl -n "+namespace+" apply --dry-run=server -f - "+apply)
		return err == nil && strings.Contains(out, "Warning"), out
	})
	said := ""
	// Once more where the webhook was not heard in its five seconds.
	await(t, "the pod to be made", func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, "kubectl -n "+namespace+" apply -f - "+apply)
		if err != nil && !strings.Contains(out, "failed calling webhook") {
			t.Fatalf("%v: %s", err, out)
		}
		said = out
		return err == nil, out
	})
	for _, want := range []string{"Warning: metadata.annotations[hami.io/vulkan]: not honoured", "Warning: spec.schedulerName: hami-scheduler is replaced by default-scheduler"} {
		if !strings.Contains(said, want) {
			t.Errorf("kubectl apply says %q, want %q", said, want)
		}
	}
	for _, want := range []string{"CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_SM_LIMIT=30", "total_mib=3000"} {
		awaitLog(t, "migrated", want)
	}
	await(t, "kubectl vernier top to show it", func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, "kubectl vernier top -n "+namespace+" 2>&1")
		return err == nil && regexp.MustCompile(`migrated .*/3000 .* 30\n`).MatchString(out) && !strings.Contains(out, "left out"), out
	})
	for command, want := range map[string]string{"why migrated": "it does not wait for Vernier", "why waiting": "100 % compute", "inspect": "Allocated/Total GPU Memory In Cluster", "defrag": "/migrated"} {
		if out := run(t, "kubectl vernier "+command+" -n "+namespace); !strings.Contains(out, want) {
			t.Errorf("kubectl vernier %s says %q, want %q", command, out, want)
		}
	}
	run(t, "kubectl -n "+namespace+" delete pod migrated")
}
