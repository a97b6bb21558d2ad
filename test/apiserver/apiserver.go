// SPDX-License-Identifier: Apache-2.0

// Package apiserver owns the tests' real Kubernetes API server: etcd and
// kube-apiserver, with the CRDs of deploy/ and whatever else of deploy/ a test
// asks for. Nothing else of a cluster runs, no controller and no kubelet, but for the
// scheduler where a test asks for it.
//
// It never builds or fetches a binary (test/cluster does) and is never imported
// by anything that ships.
package apiserver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// patience bounds the waits. A server that is given a tenth of a core is slow, and not
// broken.
const patience = 2 * time.Minute

// Options of a server. The zero value has the CRDs only.
type Options struct {
	// Manifests are files or folders, relative to deploy/manifests, that are applied in
	// the given order, such as "admission/policy.yaml".
	Manifests []string
	// Flags of the API server, such as "feature-gates".
	Flags map[string]string
}

// Start runs an API server until the test ends, and returns the configuration
// of a client that may do everything. It takes seconds: start one and use it for
// many subtests. It fails the test, and never skips it, where the binaries are
// missing.
func Start(t testing.TB, o Options) *rest.Config {
	t.Helper()
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: this test needs etcd and kube-apiserver. Run `make test`, or " +
			`KUBEBUILDER_ASSETS="$(go run ./test/cluster/cmd/vernier-cluster assets)" go test -tags envtest ./...`)
	}
	root := must.Get(manifests.Root())(t)
	crds := filepath.Join(root, "deploy", "manifests", "crds")
	env, cfg, err := start(assets, crds, o.Flags)
	for range retries {
		if err == nil {
			break
		}
		t.Logf("starting an API server, which is tried again: %v", err)
		env, cfg, err = start(assets, crds, o.Flags)
	}
	if err != nil {
		t.Fatalf("starting an API server from %s: %v", assets, err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	Apply(t, cfg, o.Manifests...)
	return cfg
}

// retries of a start. The ports are chosen before the servers listen on them, so that
// somebody else may have taken them; and envtest waits no longer than 5 s for the
// namespace "default", which a slow server makes later. Another try has ports of its own.
const retries = 2

// start starts an API server; where that fails it leaves nothing behind.
func start(assets, crds string, flags map[string]string) (*envtest.Environment, *rest.Config, error) {
	env := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     []string{crds},
		ErrorIfCRDPathMissing: true,
		// A start that was given up leaves the port taken, and the next ones fail at it.
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
		CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: patience},
	}
	for name, value := range flags {
		env.ControlPlane.GetAPIServer().Configure().Append(name, value)
	}
	cfg, err := env.Start()
	if err != nil {
		return nil, nil, errors.Join(err, env.Stop())
	}
	return env, cfg, nil
}

// As is a client configuration that acts as a user of the given name, who may do
// what the groups may: "system:masters" may do everything, so that only
// admission stands in the way.
func As(cfg *rest.Config, user string, groups ...string) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return c
}

// AsServiceAccount acts as a service account of the system's namespace, with no
// more rights than the RBAC rules that the test applied give it.
func AsServiceAccount(cfg *rest.Config, name string) *rest.Config {
	return As(cfg, "system:serviceaccount:"+v1alpha1.SystemNamespace+":"+name,
		"system:serviceaccounts", "system:serviceaccounts:"+v1alpha1.SystemNamespace, "system:authenticated")
}
