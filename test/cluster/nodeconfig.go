// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:embed templates
var templateFS embed.FS

var templates = template.Must(template.New("").Option("missingkey=error").ParseFS(templateFS, "templates/*"))

// settings are what the templates name.
type settings struct {
	Name, IP, Dir, PKI       string
	CDIDir, NRISocket        string
	Cgroup, PodSubnet        string
	PauseImage, Runc, CNIBin string
	BaseSpec                 string
	// ConfigVersion is that of containerd's configuration.
	ConfigVersion int
}

func render(name string, s settings) ([]byte, error) {
	var b bytes.Buffer
	err := templates.ExecuteTemplate(&b, name, s)
	return b.Bytes(), err
}

// configure writes the node's configuration files.
func (n *Node) configure() error {
	version, err := n.c.tools.containerdConfigVersion()
	if err != nil {
		return err
	}
	s := settings{
		ConfigVersion: version,
		Name:          n.Name, IP: nodeIP(n.index), Dir: n.Dir(), PKI: n.c.pkiDir(),
		CDIDir: n.CDIDir(), NRISocket: n.NRISocket(),
		Cgroup: n.Cgroup(), PodSubnet: podSubnet(n.index),
		PauseImage: PauseImage, Runc: n.c.tools.runc, CNIBin: n.c.tools.cni,
	}
	if len(n.config.Mounts) > 0 {
		s.BaseSpec = filepath.Join(n.Dir(), "base-spec.json")
		if err := n.writeBaseSpec(s.BaseSpec); err != nil {
			return err
		}
	}
	for file, name := range map[string]string{
		"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "cni/10-pods.conflist": "cni.conflist",
	} {
		data, err := render(name, s)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.Dir(), file), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeBaseSpec writes the OCI spec from which every container of the node
// starts: containerd's own default and the node's mounts.
func (n *Node) writeBaseSpec(file string) error {
	out, err := exec.Command(n.c.tools.ctr, "oci", "spec").Output()
	if err != nil {
		return fmt.Errorf("containerd's default spec: %w", err)
	}
	mounts := slices.Clone(n.config.Mounts)
	for i, m := range mounts {
		if !filepath.IsAbs(m.Source) {
			mounts[i].Source = filepath.Join(n.Dir(), m.Source)
		}
		if _, err := os.Stat(mounts[i].Source); err != nil {
			return fmt.Errorf("mount at %s: %w: make it before the cluster starts, or in Prepare", m.Destination, err)
		}
	}
	spec, err := withMounts(out, mounts)
	if err != nil {
		return fmt.Errorf("containerd's default spec: %w", err)
	}
	return os.WriteFile(file, spec, 0o644)
}

func withMounts(base []byte, mounts []Mount) ([]byte, error) {
	var spec map[string]any
	if err := json.Unmarshal(base, &spec); err != nil {
		return nil, err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("it has no process")
	}
	// Without a base spec containerd drops these limits for pods; with one it
	// believes that they are wanted.
	delete(process, "rlimits")
	list, ok := spec["mounts"].([]any)
	if !ok {
		return nil, fmt.Errorf("it has no mounts")
	}
	for _, m := range mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		list = append(list, map[string]any{
			"type": "bind", "source": m.Source, "destination": m.Destination,
			"options": []string{"rbind", "rprivate", access},
		})
	}
	spec["mounts"] = list
	return json.MarshalIndent(spec, "", "  ")
}

// joinLabels is the form of kubelet's --node-labels.
func joinLabels(labels map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}
