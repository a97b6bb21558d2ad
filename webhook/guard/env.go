// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// reservedEnv begins the variables that the node agent sets and looks at.
const reservedEnv = "VERNIER_"

// Env sorts the variables of a container in a pod with a share; shared tells
// whether it has one itself. remove are indexes into c.Env, ascending.
//
// What manifests made for whole GPUs often carry is taken out, with a warning,
// so that they work unchanged. What only a forger would write is refused. What
// many images need for good reasons (LD_PRELOAD of an allocator) stays, and the
// user is told what it may do. A ConfigMap's variables are not seen here: the
// node agent overrides NVIDIA_VISIBLE_DEVICES whatever its origin.
func Env(c *slim.Container, shared bool, path *field.Path) (remove []int, warnings []string, errs field.ErrorList) {
	for i := range c.Env {
		name := c.Env[i].Name
		switch {
		case name == api.EnvVisibleDevices:
			remove = append(remove, i)
			warnings = append(warnings, warning(path, name, "removed: a container sees the GPUs of its share and no others"))
		case shared && strings.HasPrefix(name, "CUDA_MPS_"):
			remove = append(remove, i)
			warnings = append(warnings, warning(path, name, "removed: it would lead the container to an MPS server that is not its share's"))
		case shared && (name == "LD_PRELOAD" || name == "LD_AUDIT"):
			warnings = append(warnings, warning(path, name, "kept: a library loaded this way must not intercept the CUDA driver API, or the share's limits may not hold"))
		case strings.HasPrefix(name, reservedEnv):
			errs = append(errs, field.Forbidden(path.Child("env").Index(i).Child("name"),
				fmt.Sprintf("%s: names that begin with %s are Vernier's: choose another", name, reservedEnv)))
		}
	}
	return remove, warnings, errs
}

func warning(path *field.Path, name, text string) string {
	return path.Child("env").Key(name).String() + ": " + text
}
