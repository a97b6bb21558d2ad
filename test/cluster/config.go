// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Config is what a cluster is made of. The zero value is one node, "gpu-1".
type Config struct {
	// Dir holds everything that the cluster writes; empty is DefaultDir. It must
	// not exist, or be empty, must be short, because sockets lie in it, and must be
	// on a file system that overlayfs can write to, which overlayfs is not. Down
	// removes it.
	Dir string
	// LogDir holds one file per process; empty is Dir/log, which goes with Dir.
	// A folder given here stays.
	LogDir string
	// Nodes are at most MaxNodes.
	Nodes []NodeConfig
	// Progress gets a line for every step; nil is silence.
	Progress io.Writer
}

// NodeConfig is one node.
type NodeConfig struct {
	// Name is the node's name in Kubernetes.
	Name string
	// Labels are set when the node registers.
	Labels map[string]string
	// Mounts are put into every container of the node, the pods' sandboxes
	// included: this is how what plays the node's kernel driver gets everywhere.
	Mounts []Mount
	// Own are folders of the machine in whose place the node has its own: which
	// folder, and where below the node's it lies. What runs on the node, the pods'
	// host paths included, sees the node's alone.
	Own map[string]string
	// Prepare, if set, is called once the node's folder is there and before
	// anything of the node starts; what it puts there goes with the cluster.
	Prepare func(dir string) error `json:"-"`
}

// Mount binds a file or folder of the machine into containers. A relative source
// lies in the node's folder.
type Mount struct {
	Source      string
	Destination string
	ReadOnly    bool
}

const (
	// DefaultDir is short, and on a disk on most machines.
	DefaultDir = "/var/lib/vernier-cluster"
	// MaxNodes is what the addresses below allow; two cores carry no more.
	MaxNodes = 9

	controlPlaneIP = "10.250.0.1"
	serviceRange   = "10.252.0.0/16"
	// serviceIP is the first of the range: Service "kubernetes" in namespace
	// "default". The control plane has this address too, so that clients inside
	// pods reach the API server although no kube-proxy runs.
	serviceIP = "10.252.0.1"
)

func nodeIP(index int) string    { return fmt.Sprintf("10.250.0.%d", 11+index) }
func placeIP(index int) string   { return fmt.Sprintf("10.250.0.%d", 101+index) }
func podSubnet(index int) string { return fmt.Sprintf("10.251.%d.0/24", 1+index) }

// maxShimPath is the length of a unix socket's path (107) less that of the
// longest name that containerd gives one: a folder of ours and 64 digits.
const maxShimPath = 107 - len("//s/") - 64

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		c.Dir = DefaultDir
	}
	if c.LogDir == "" {
		c.LogDir = filepath.Join(c.Dir, "log")
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	if len(c.Nodes) == 0 {
		c.Nodes = []NodeConfig{{Name: "gpu-1"}}
	}
	for _, path := range []string{c.Dir, c.LogDir} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("folder %q is not an absolute path", path)
		}
	}
	return c.validate()
}

func (c *Config) validate() error {
	if len(c.Nodes) > MaxNodes {
		return fmt.Errorf("%d nodes: at most %d", len(c.Nodes), MaxNodes)
	}
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		if problems := validation.IsDNS1123Label(n.Name); len(problems) > 0 {
			return fmt.Errorf("node name %q: %s", n.Name, problems[0])
		}
		if seen[n.Name] || reserved[n.Name] {
			return fmt.Errorf("node name %q is taken: choose another", n.Name)
		}
		seen[n.Name] = true
		if len(c.Dir)+len(n.Name) > maxShimPath {
			return fmt.Errorf("Dir %q and node name %q together are longer than %d characters, too long for the sockets below: choose a shorter Dir", c.Dir, n.Name, maxShimPath)
		}
		for target := range n.Own {
			if !filepath.IsAbs(target) {
				return fmt.Errorf("node %s: own folder in place of %q: must be an absolute path", n.Name, target)
			}
		}
		for _, m := range n.Mounts {
			if !filepath.IsAbs(m.Destination) {
				return fmt.Errorf("node %s: mount at %q: must be an absolute path", n.Name, m.Destination)
			}
		}
	}
	return nil
}

// reserved are the names of what else lies in Dir or holds a namespace.
var reserved = map[string]bool{controlPlane: true, "cluster": true, "etcd": true, "images": true, "kubeconfig": true, "log": true, "pki": true}

// checkDir refuses a Dir with something in it: Down removes it whole.
func (c *Config) checkDir() error {
	entries, err := os.ReadDir(c.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("Dir %s is not empty and not a cluster's: choose another, or remove it", c.Dir)
	}
	return err
}
