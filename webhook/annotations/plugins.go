// SPDX-License-Identifier: Apache-2.0

package annotations

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

const (
	// requiredPlugins, without a suffix, is the weakest form of the annotation.
	requiredPlugins = "required-plugins.noderesource.dev"
	// requiredForContainer begins the strongest form.
	requiredForContainer = api.RequiredPluginsPrefix + "container."
)

// RequirePlugin is the annotations to set so that containerd starts no container
// of the pod without our node agent; empty where they are all there.
//
// containerd obeys one annotation per container: the container's own form, else
// the pod's, else the one without suffix. So ours is added to every one that may
// win, and a user's list is carried along.
func RequirePlugin(annotations map[string]string, path *field.Path) (map[string]string, field.ErrorList) {
	set := map[string]string{}
	var errs field.ErrorList
	require := func(key, from string) {
		value, err := withOurs(annotations[from])
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(path.Key(from), annotations[from],
				`must be a list of NRI plugin names, such as '["a","b"]': correct or remove it`))
		case value != annotations[key]:
			set[key] = value
		}
	}
	if _, ok := annotations[api.AnnotationRequiredPlugins]; ok {
		require(api.AnnotationRequiredPlugins, api.AnnotationRequiredPlugins)
	} else {
		require(api.AnnotationRequiredPlugins, requiredPlugins)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, requiredForContainer) {
			require(key, key)
		}
	}
	return set, errs
}

// withOurs is the list with our plugin in it, in the one spelling that the
// admission policy looks for.
func withOurs(list string) (string, error) {
	if list == "" || list == api.RequiredPluginsValue {
		return api.RequiredPluginsValue, nil
	}
	// containerd reads it as YAML too.
	var plugins []string
	if err := yaml.Unmarshal([]byte(list), &plugins); err != nil {
		return "", err
	}
	if !slices.Contains(plugins, api.NRIPluginName) {
		plugins = append(plugins, api.NRIPluginName)
	}
	text, err := json.Marshal(plugins)
	return string(text), err
}
