// SPDX-License-Identifier: Apache-2.0

// Package tools owns the programs that a cluster is made of: etcd, Kubernetes,
// containerd, runc, the CNI plugins and two small ones of our own. Each is built
// from its Go module at the version that the go.mod beside this file names, once,
// into a cache that all checkouts of a user share.
//
// It never downloads a binary, never installs anything on the machine and never
// starts what it builds, except `go`.
package tools

import "strings"

// Tool is one module's programs, built by one invocation of go.
type Tool struct {
	// Name is the folder under test/cluster/tools that holds its go.mod, and the
	// prefix of its folder in the cache.
	Name string
	// Module carries the version that names the tool; empty for our own programs,
	// whose version is their source.
	Module string
	// Packages are built into binaries named after their last element, except
	// where Output names the only one.
	Packages []string
	Output   string
	// Links are more names of Output, which looks at the one that it is called by.
	Links   []string
	Tags    string
	LDFlags string
	CGO     bool
	// Manifests are copied beside the programs, each to a folder of its name in one called manifests.
	Manifests map[string]Manifests
	// Cold says how long an empty build cache makes it on two cores.
	Cold string
}

// Manifests are a folder of a module that the tool's go.mod names.
type Manifests struct{ Module, Folder string }

// The build tags and flags are those of the projects' own releases as far as a
// build from the module allows: static, without what no test here uses.
var (
	Etcd = Tool{
		Name: "etcd", Module: "go.etcd.io/etcd/server/v3",
		Packages: []string{"go.etcd.io/etcd/server/v3"}, Output: "etcd",
		Tags: "grpcnotrace", LDFlags: "-s -w", Cold: "30 s",
	}
	Kubernetes = Tool{
		Name: "kubernetes", Module: "k8s.io/kubernetes",
		Packages: []string{"."}, Output: "hyperkube",
		Links: []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"},
		Tags:  "selinux,notest,grpcnotrace", LDFlags: kubernetesVersion("VERSION"), Cold: "5 min",
	}
	Containerd = Tool{
		Name: "containerd", Module: "github.com/containerd/containerd/v2",
		Packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/ctr",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		},
		Tags: "urfave_cli_no_docs osusergo netgo static_build no_btrfs no_devmapper no_zfs grpcnotrace",
		LDFlags: "-s -w -X github.com/containerd/containerd/v2/version.Version=VERSION" +
			" -X github.com/containerd/containerd/v2/version.Revision=module",
		Cold: "1 min",
	}
	Runc = Tool{
		Name: "runc", Module: "github.com/opencontainers/runc",
		Packages: []string{"github.com/opencontainers/runc"},
		// Kubernetes sets seccomp profiles; runc needs libseccomp's headers for that.
		Tags: "netgo osusergo seccomp", LDFlags: "-s -w -extldflags -static", CGO: true, Cold: "10 s",
	}
	CNI = Tool{
		Name: "cni", Module: "github.com/containernetworking/plugins",
		Packages: []string{
			"github.com/containernetworking/plugins/plugins/main/bridge",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
		},
		LDFlags: "-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=VERSION",
		Cold:    "10 s",
	}
	// Kwok plays nodes without a machine behind them. Only the benchmark of a large
	// cluster needs it.
	Kwok = Tool{
		Name: "kwok", Module: "sigs.k8s.io/kwok",
		Packages: []string{"sigs.k8s.io/kwok/cmd/kwok"},
		LDFlags:  "-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=VERSION", Cold: "1 min",
	}
	// Jobs are the queueing system and the controllers of jobs that run beside Vernier in some tests. One
	// go.mod has them all, so that one build of their libraries serves all.
	Jobs = Tool{
		Name: "jobs", Module: "sigs.k8s.io/kueue",
		Packages: []string{
			"sigs.k8s.io/kueue/cmd/kueue",
			"sigs.k8s.io/jobset",
			"sigs.k8s.io/lws/cmd",
			"github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
			"./kuberay",
		},
		Manifests: map[string]Manifests{
			"kueue":        {"sigs.k8s.io/kueue", "config"},
			"jobset":       {"sigs.k8s.io/jobset", "config"},
			"lws":          {"sigs.k8s.io/lws", "config"},
			"trainer":      {"github.com/kubeflow/trainer/v2", "manifests"},
			"kuberay":      {"github.com/ray-project/kuberay/ray-operator", "config"},
			"coscheduling": {"sigs.k8s.io/scheduler-plugins", "manifests/coscheduling"},
		},
		LDFlags: "-s -w -X sigs.k8s.io/kueue/pkg/version.GitVersion=VERSION", Cold: "6 min",
	}
	// Karpenter makes nodes for CapacityBuffers, by its provider of nodes without a machine behind them.
	Karpenter = Tool{
		Name: "karpenter", Module: "sigs.k8s.io/karpenter",
		Packages: []string{"sigs.k8s.io/karpenter/kwok"}, Output: "karpenter",
		Manifests: map[string]Manifests{
			"crds":      {"sigs.k8s.io/karpenter", "kwok/charts/crds"},
			"kwok-crds": {"sigs.k8s.io/karpenter", "kwok/apis/crds"},
		},
		LDFlags: "-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version=VERSION", Cold: "4 min",
	}
	// Volcano is a batch scheduler with its controllers and webhooks. Only its own tests need it.
	Volcano = Tool{
		Name: "volcano", Module: "volcano.sh/volcano",
		Packages: []string{
			"volcano.sh/volcano/cmd/controller-manager",
			"volcano.sh/volcano/cmd/scheduler",
			"volcano.sh/volcano/cmd/webhook-manager",
		},
		Manifests: map[string]Manifests{"volcano": {"volcano.sh/volcano", "installer"}},
		LDFlags:   "-s -w -X volcano.sh/volcano/pkg/version.Version=VERSION", Cold: "6 min",
	}
	// Own are the programs of this repository that run inside the cluster's
	// namespaces.
	Own = Tool{
		Name: "own", LDFlags: "-s -w", Cold: "5 s",
		Packages: []string{"./pause", "./forward"},
	}
)

// All is every tool that a cluster needs, the slowest last. Guests is what runs on it in some tests.
var (
	All    = []Tool{Etcd, CNI, Own, Runc, Containerd, Kubernetes}
	Guests = []Tool{Jobs, Karpenter}
)

// kubernetesVersion stamps the version where Kubernetes' own build does; without
// it the API server calls itself v0.0.0 and kubelets refuse it.
func kubernetesVersion(v string) string {
	flags := []string{"-s -w"}
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, set := range []string{
			"gitVersion=" + v, "gitMajor=1", "gitMinor=MINOR", "gitTreeState=clean",
			"gitCommit=0000000000000000000000000000000000000000", "buildDate=2026-01-01T00:00:00Z",
		} {
			flags = append(flags, "-X "+p+"."+set)
		}
	}
	return strings.Join(flags, " ")
}
