// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Assets returns a folder that holds etcd, kube-apiserver and kubectl, which is
// what controller-runtime's envtest expects of KUBEBUILDER_ASSETS. It builds what
// the cache lacks.
func Assets(ctx context.Context, progress io.Writer) (string, error) {
	built, err := Ensure(ctx, progress, Etcd, Kubernetes)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(built[1]), "envtest-"+filepath.Base(built[0])+"-"+filepath.Base(built[1]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, from := range map[string]string{"etcd": built[0], "kube-apiserver": built[1], "kubectl": built[1]} {
		// The folder's name says which builds it links to, so a link that is there is right.
		err := os.Symlink(filepath.Join("..", filepath.Base(from), name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}
