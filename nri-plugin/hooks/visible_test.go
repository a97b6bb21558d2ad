// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
)

// Invariant 3: whatever the environment says, it ends up asking for nothing, or
// the container is refused with the variable and the remedy.
func TestHide(t *testing.T) {
	const name = v1alpha1.EnvVisibleDevices
	for text, c := range map[string]struct {
		env     []string
		refused bool
	}{
		"none":                   {nil, false},
		"the image's":            {[]string{name + "=all"}, false},
		"image and pod":          {[]string{name + "=all", "A=b", name + "=GPU-1"}, true},
		"the pod asks for none":  {[]string{name + "=all", name + "=none"}, false},
		"the pod asks for void":  {[]string{name + "=all", name + "=void"}, false},
		"the pod empties it":     {[]string{name + "=all", name + "="}, false},
		"void first":             {[]string{name + "=void", name + "=0"}, true},
		"another of like a name": {[]string{name + "=all", name + "_X=all"}, false},
	} {
		adjust := &api.ContainerAdjustment{}
		err := maskVisibleDevices(&api.Container{Env: c.env}, adjust)
		if (err != nil) != c.refused {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "remove it from the pod") {
				t.Errorf("%s: refused without the remedy: %v", text, err)
			}
			continue
		}
		if len(adjust.Env) != 1 || adjust.Env[0].Key != name || adjust.Env[0].Value != v1alpha1.EnvVisibleDevicesVoid {
			t.Errorf("%s: adjusted to %v", text, adjust.Env)
		}
	}
}
