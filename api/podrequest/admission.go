// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

// tolerateMissing is the key that NRI's documentation proposes for letting a
// container start without the plugins that it requires.
const tolerateMissing = "tolerate-missing-plugins.noderesource.dev"

// Check reads the annotations of a pod that asks for a share. gated reports
// whether the pod has our gate. Then its shares are the webhook's own, from an
// earlier round of the same admission, and are written again.
func Check(annotations map[string]string, gated bool, path *field.Path) (Wishes, field.ErrorList) {
	wishes := WishesOf(annotations)
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		switch at := path.Key(key); {
		case key == api.AnnotationPlacement, (key == api.AnnotationShares || key == api.AnnotationDialect) && !gated:
			errs = append(errs, field.Forbidden(at, "only Vernier writes it: remove it (a manifest made from a running pod carries it)"))
		case key == api.AnnotationShares, key == api.AnnotationDialect:
		case key == api.AnnotationResize:
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("only a running pod is resized: remove it, or use %s to begin with less", api.AnnotationStart)))
		case isResource(key):
			errs = append(errs, field.Forbidden(at, asLimit))
		case slices.Contains(userKeys, key):
			if err := wishes.errs[key]; err != nil {
				errs = append(errs, field.Invalid(at, field.OmitValueType{}, err.Error()))
			}
		case strings.HasPrefix(key, api.Prefix):
			errs = append(errs, field.NotSupported(at, key, userKeys))
		case strings.HasPrefix(key, api.AnnotationNVIDIACDIPrefix), strings.HasPrefix(key, api.AnnotationCDIPrefix):
			errs = append(errs, field.Forbidden(at, "it injects devices past the pod's share: remove it, the share brings its devices"))
		case strings.HasPrefix(key, tolerateMissing):
			errs = append(errs, field.Forbidden(at, "a container with a share must not start without Vernier's node agent: remove it"))
		}
	}
	return wishes, errs
}

// Idle reads the annotations of a pod that asks for no share. Wishes have no effect, and an unknown one
// is refused, as its author may wait for its effect. So are the documents of a
// share. At most maxIdle are looked at, since such a pod may have any number of annotations.
func Idle(annotations map[string]string, path *field.Path) (warnings []string, errs field.ErrorList) {
	for _, key := range ours(annotations) {
		switch at := path.Key(key); {
		case key == api.AnnotationShares, key == api.AnnotationPlacement:
			errs = append(errs, field.Forbidden(at, NoShare))
		case key == api.AnnotationDialect:
		case slices.Contains(userKeys, key):
			warnings = append(warnings, fmt.Sprintf("%s: has no effect, since no container asks for a share: add a limit such as %s", at, api.ResourceCore))
		case isResource(key):
			errs = append(errs, field.Forbidden(at, asLimit))
		default:
			errs = append(errs, field.NotSupported(at, key, userKeys))
		}
	}
	return warnings, errs
}

// Misplaced warns about annotations of ours on a workload: its pods have those of the template,
// which stand at the path of. Like Idle it looks at maxIdle of them.
func Misplaced(annotations map[string]string, path, of *field.Path) (warnings []string) {
	for _, key := range ours(annotations) {
		switch at := path.Key(key); {
		case slices.Contains(userKeys, key):
			warnings = append(warnings, fmt.Sprintf("%s: has no effect here: move it to %s", at, of))
		case isResource(key):
			warnings = append(warnings, fmt.Sprintf("%s: %s", at, asLimit))
		default:
			warnings = append(warnings, field.NotSupported(at, key, userKeys).Error())
		}
	}
	return warnings
}

// ours lists the keys with our prefix, sorted, maxIdle of them at most.
func ours(annotations map[string]string) []string {
	keys := api.Ours(annotations)
	return keys[:min(len(keys), maxIdle)]
}

const maxIdle = 32

// NoShare is the remedy for the mark of a share on a pod that asks for none.
const NoShare = "no container asks for a vernier.dev resource: remove it, or ask for one as a limit"

const asLimit = "a share is asked for as a limit of the container that uses the GPU: move the line to its resources.limits"

func isResource(key string) bool { return slices.Contains(api.Resources, corev1.ResourceName(key)) }
