// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"vernier.dev/vernier/api/v1alpha1"
)

// explain adds the remedy to an error of listing a resource.
func explain(err error, resource, namespace string) error {
	var unheard *url.Error
	switch {
	case errors.As(err, &unheard) || apierrors.IsUnauthorized(err):
		return fmt.Errorf("listing %s: %w\ncheck the cluster and the login: --kubeconfig, --context and the environment variable KUBECONFIG choose them; "+
			"`kubectl cluster-info` tests the connection", resource, err)
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return fmt.Errorf("this cluster does not know %s: is Vernier installed? "+
			"`kubectl apply --server-side -k deploy` installs it; `kubectl config current-context` names the cluster that was asked", resource)
	case apierrors.IsForbidden(err) && resource == "sliceledgers."+v1alpha1.Group:
		return fmt.Errorf("%w\nledgers are cluster-wide: an administrator binds them, and a RoleBinding in a namespace does not; %s", err, showsLedgers)
	case apierrors.IsForbidden(err):
		where := "namespace " + namespace
		if namespace == "" {
			where = "all namespaces (-n NAME asks for one only)"
		}
		return fmt.Errorf("%w\nyou need the permission to list %s in %s: the cluster role view has it", err, resource, where)
	default:
		return fmt.Errorf("listing %s: %w", resource, err)
	}
}
