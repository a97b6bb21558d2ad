// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vernier.dev/vernier/test/cluster/image"
	"vernier.dev/vernier/test/cluster/tools"
)

const kueueImage = "vernier.local/kueue:1"

// InstallKueue installs Kueue by its own manifests, with an image of the program that was built here, and
// returns when its webhooks answer. Edits replace texts of the manifests, as pairs.
func (s *System) InstallKueue(ctx context.Context, edits ...string) error {
	s.step("installing Kueue")
	dirs, err := tools.Ensure(ctx, s.progress, tools.Kueue)
	if err != nil {
		return err
	}
	m := &image.Image{Name: kueueImage, User: "65532:65532"}
	if err := m.AddFile("/manager", filepath.Join(dirs[0], tools.Kueue.Output)); err != nil {
		return err
	}
	m.Dir("/tmp", 0o777)
	if err := s.AddImage(ctx, m); err != nil {
		return err
	}
	text, err := s.Shell(ctx, "kubectl kustomize "+filepath.Join(dirs[0], tools.Kueue.Manifests, "default"))
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	// The image is here alone, and on a small machine it gets what it needs, not what a large cluster would.
	const staging = "us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue:main"
	text = strings.NewReplacer(append([]string{
		"image: " + staging, "image: " + kueueImage, "imagePullPolicy: Always", "imagePullPolicy: Never", "cpu: 500m", "cpu: 50m",
	}, edits...)...).Replace(text)
	file := filepath.Join(s.Cluster.Dir(), "kueue.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	if out, err := s.Shell(ctx, "kubectl apply --server-side -f "+file+" && kubectl -n kueue-system rollout status deployment/kueue-controller-manager --timeout="+patience.String()); err != nil {
		said, _ := s.Shell(ctx, "kubectl -n kueue-system get pods,events; kubectl -n kueue-system logs -l control-plane=controller-manager --tail=30")
		return fmt.Errorf("%w: %s\n%s", err, out, said)
	}
	return s.await(ctx, "Kueue's webhooks to answer", func(ctx context.Context) error {
		out, err := s.Shell(ctx, "printf 'apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: probe}\n' | kubectl create --dry-run=server -f -")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}
