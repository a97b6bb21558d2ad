// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// Env sorts the variables of a container in a pod with a share; shared reports
// whether it has one itself. The remove are indexes into c.Env, ascending.
//
// Variables that manifests for whole GPUs often carry are removed, with a warning,
// so that they work unchanged. Those that only a forger would write are refused. Those that
// many images need for good reasons (LD_PRELOAD of an allocator) stay, and the
// user gets a warning. Variables of the image and of envFrom are not seen here: the node
// agent applies the same rule to them.
func Env(c *slim.Container, shared bool, path *field.Path) (remove []int, warnings []string, errs field.ErrorList) {
	for i := range c.Env {
		name := c.Env[i].Name
		switch api.EnvRuleOf(name, shared) {
		case api.EnvDropped:
			remove = append(remove, i)
			text := "removed: it would lead the container to an MPS server that is not its share's"
			if name == api.EnvVisibleDevices {
				text = "removed: a container sees the GPUs of its share and no others"
			}
			warnings = append(warnings, warning(path, name, text))
		case api.EnvWarned:
			warnings = append(warnings, warning(path, name, "kept: a library loaded this way must not intercept the CUDA driver API, or the share's limits may not hold"))
		case api.EnvReserved:
			errs = append(errs, field.Forbidden(path.Child("env").Index(i).Child("name"),
				fmt.Sprintf("%s: names that begin with %s are Vernier's: choose another", name, api.EnvReservedPrefix)))
		}
	}
	return remove, warnings, errs
}

// Devices warns of a CUDA_VISIBLE_DEVICES in the env of a container with a share, unless it shows
// all that the share has.
func Devices(c *slim.Container, share api.Share, mode api.Mode, path *field.Path) (warnings []string) {
	for i := range c.Env {
		v, gpus := &c.Env[i], int(share.GPUs)
		switch {
		case v.Name != api.EnvCUDADevices || v.ValueFrom == nil && v.Value == api.AllDevices(gpus):
		case v.ValueFrom != nil || api.ChoosesBeyond(v.Value, make([]string, gpus), mode == api.ModeMIG):
			warnings = append(warnings, warning(path, v.Name, fmt.Sprintf(
				"remove it: CUDA numbers the GPUs of the share from 0, and one that the share does not have makes the node agent set %s", api.AllDevices(gpus))))
		default:
			warnings = append(warnings, warning(path, v.Name, fmt.Sprintf("kept: it hides GPUs of the share, which has %d: remove it to see all", gpus)))
		}
	}
	return warnings
}

func warning(path *field.Path, name, text string) string {
	return path.Child("env").Key(name).String() + ": " + text
}
