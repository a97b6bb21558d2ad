// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"vernier.dev/vernier/api/v1alpha1"
)

// InstallCommand is the README's.
const InstallCommand = "helm install vernier deploy/chart --namespace vernier-system --create-namespace"

// installChart puts the images on every node and installs the chart, of this repository or
// of the release in a folder. Its values say where the simulated driver is, and nothing else.
func (s *System) installChart(ctx context.Context, release string) error {
	images, install := filepath.Join(s.bin, "images"), InstallCommand
	if release != "" {
		images = filepath.Join(release, "images")
		install = strings.Replace(install, "deploy/chart", filepath.Join(release, "chart"), 1)
	}
	if err := s.ImportImages(ctx, images); err != nil {
		return err
	}
	for i, n := range s.Cluster.Nodes {
		if err := s.Kubectl(ctx, s.progress, "label", "node", n.Name, v1alpha1.LabelGPUNode+"=true"); err != nil {
			return err
		}
		s.Nodes = append(s.Nodes, &Node{Node: n, GPU: s.gpus[i]})
	}
	text, err := s.Shell(ctx, install+" --wait --timeout="+patience.String()+
		" --set=driver.root="+driverPath+",driver.devRoot="+driverPath+
		" --set=node.env[0].name=SIMGPU_STATE,node.env[0].value="+statePath+
		" --set=node.env[1].name=SIMGPU_DEVROOT,node.env[1].value="+driverPath)
	if err != nil {
		// Why, only the parts can say.
		said, _ := s.Shell(ctx, "kubectl -n vernier-system get pods,events; kubectl -n vernier-system logs -l app.kubernetes.io/name=vernier --prefix --tail=20")
		return fmt.Errorf("%w: %s\n%s", err, text, said)
	}
	return nil
}

// ImportImages puts the images of `make images` in a folder on every node.
func (s *System) ImportImages(ctx context.Context, folder string) error {
	archives, err := filepath.Glob(filepath.Join(folder, "*.tar"))
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return fmt.Errorf("no image in %s: run `make images`", folder)
	}
	for _, n := range s.Cluster.Nodes {
		for _, archive := range archives {
			if err := n.ImportImage(ctx, archive); err != nil {
				return err
			}
		}
	}
	return nil
}
