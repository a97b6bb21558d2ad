// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

const (
	// requiredPlugins begins the annotations that name NRI plugins. Without a suffix it is the
	// weakest form.
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
			errs = append(errs, field.Invalid(path.Key(from), field.OmitValueType{},
				fmt.Sprintf(`must be a list of NRI plugin names, such as '["a","b"]'%s: correct or remove it`, err)))
		case value != annotations[key]:
			set[key] = value
		}
	}
	if _, ok := annotations[api.AnnotationRequiredPlugins]; ok {
		require(api.AnnotationRequiredPlugins, api.AnnotationRequiredPlugins)
	} else {
		require(api.AnnotationRequiredPlugins, requiredPlugins)
	}
	others := 0
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, requiredForContainer) {
			require(key, key)
		}
		if strings.HasPrefix(key, api.RequiredPluginsPrefix) && annotations[key] != api.RequiredPluginsValue {
			others++
		}
	}
	if others > api.MaxPluginLists {
		errs = append(errs, field.Invalid(path, others, fmt.Sprintf(
			"at most %d annotations %sNAME may name other NRI plugins: name them for all containers, with %s",
			api.MaxPluginLists, api.RequiredPluginsPrefix, api.AnnotationRequiredPlugins)))
	}
	return set, errs
}

// What a list of plugins must not be, as the end of the sentence that says what it must be.
// What the YAML parser says of it is left out: it quotes the text, however long.
var (
	errNoList  = errors.New("")
	errTooLong = fmt.Errorf(", of at most %d bytes", api.MaxAnnotationBytes)
	errAliased = errors.New(", without YAML anchors and aliases")
)

// withOurs is the list with our plugin in it and no name twice, in the one spelling that
// the admission policy knows.
func withOurs(list string) (string, error) {
	if list == "" || list == api.RequiredPluginsValue {
		return api.RequiredPluginsValue, nil
	}
	if len(list) > api.MaxAnnotationBytes {
		return "", errTooLong
	}
	// containerd reads it as YAML too.
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(list), &document); err != nil {
		return "", errNoList
	}
	if aliased(&document) {
		return "", errAliased
	}
	var named, plugins []string
	if err := document.Decode(&named); err != nil {
		return "", errNoList
	}
	for _, plugin := range append(named, api.NRIPluginName) {
		if !slices.Contains(plugins, plugin) {
			plugins = append(plugins, plugin)
		}
	}
	text, err := json.Marshal(plugins)
	if err == nil && len(text) > api.MaxAnnotationBytes {
		// A second round of admission reads what the first one wrote.
		err = errTooLong
	}
	return string(text), err
}

// aliased reports whether the document has an anchor or an alias: a few bytes of them
// stand for any number.
func aliased(node *yaml.Node) bool {
	return node.Kind == yaml.AliasNode || node.Anchor != "" || slices.ContainsFunc(node.Content, aliased)
}
