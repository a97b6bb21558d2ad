// SPDX-License-Identifier: Apache-2.0

// Package annotations owns what the annotations of a pod that asks for a share
// may say: a user's wishes are read, what only the system writes is refused, as
// is what would hand out devices past every slice.
//
// It never looks at containers.
package annotations

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

// userKeys are what a user may set.
var userKeys = []string{api.AnnotationMode, api.AnnotationPolicy, api.AnnotationTopology,
	api.AnnotationQoS, api.AnnotationBurst, api.AnnotationGPUModel, api.AnnotationGPUUUID}

// tolerateMissing is the key that NRI's documentation proposes for letting a
// container start without the plugins that it requires.
const tolerateMissing = "tolerate-missing-plugins.noderesource.dev"

// Wishes are what the annotations say, beyond what the allocator reads itself.
type Wishes struct {
	Mode  api.Mode
	Burst api.Burst
	// Warnings name what is accepted and has no effect yet.
	Warnings []string
}

// Check reads the annotations of a pod that asks for a share. gated tells
// whether the pod has our gate: then its shares are the webhook's own, from an
// earlier round of the same admission, and are not believed but written anew.
func Check(annotations map[string]string, gated bool, path *field.Path) (Wishes, field.ErrorList) {
	wishes := Wishes{Mode: api.ModeAuto}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value, at := annotations[key], path.Key(key)
		switch {
		case key == api.AnnotationPlacement, (key == api.AnnotationShares || key == api.AnnotationDialect) && !gated:
			errs = append(errs, field.Forbidden(at, "only Vernier writes it: remove it (a manifest made from a running pod carries it)"))
		case key == api.AnnotationShares, key == api.AnnotationDialect:
		case strings.HasPrefix(key, api.Prefix):
			if err := wishes.read(key, value, at); err != nil {
				errs = append(errs, err)
			}
		case strings.HasPrefix(key, api.AnnotationNVIDIACDIPrefix), strings.HasPrefix(key, api.AnnotationCDIPrefix):
			errs = append(errs, field.Forbidden(at, "it injects devices past the pod's share: remove it, the share brings its devices"))
		case strings.HasPrefix(key, tolerateMissing):
			errs = append(errs, field.Forbidden(at, "a container with a share must not start without Vernier's node agent: remove it"))
		}
	}
	return wishes, errs
}

func (w *Wishes) read(key, value string, at *field.Path) *field.Error {
	var err error
	switch key {
	case api.AnnotationMode:
		w.Mode, err = api.ParseMode(value)
	case api.AnnotationPolicy:
		_, err = api.ParsePolicy(value)
	case api.AnnotationGPUModel, api.AnnotationGPUUUID:
		_, err = api.ParseAllowList(value)
	case api.AnnotationTopology:
		err = w.topology(value)
	case api.AnnotationQoS:
		_, err = api.ParseQoS(value)
	case api.AnnotationBurst:
		w.Burst, err = api.ParseBurst(value)
	default:
		return field.NotSupported(at, key, userKeys)
	}
	if err != nil {
		return field.Invalid(at, field.OmitValueType{}, err.Error())
	}
	return nil
}

func (w *Wishes) topology(value string) error {
	kind, required := strings.CutSuffix(value, ":required")
	switch {
	case value == "":
	case !slices.Contains([]string{"numa", "pcie", "nvlink"}, kind):
		return fmt.Errorf("%q is unknown: use numa, pcie or nvlink", value)
	case required:
		return fmt.Errorf("%q is not available in this release: remove \":required\" or the annotation", value)
	default:
		w.warn(api.AnnotationTopology, "%q is accepted and not honoured yet: devices are chosen without regard to it", value)
	}
	return nil
}

func (w *Wishes) warn(key, format string, args ...any) {
	w.Warnings = append(w.Warnings, fmt.Sprintf("metadata.annotations["+key+"]: "+format, args...))
}
