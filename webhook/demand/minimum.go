// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"flag"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Minimum is the smallest share of one GPU that a container may ask for. A GPU has
// MaxSlicesPerDevice slices: as many containers with a MiB each fill it. The zero value
// allows every share.
type Minimum struct {
	// MemMiB bounds memory that is asked for in MiB, Percent memory and compute that are
	// asked for in percent.
	MemMiB, Percent uint
}

// AddFlags adds a flag for each bound.
func (m *Minimum) AddFlags(flags *flag.FlagSet) {
	flags.UintVar(&m.MemMiB, "min-share-mem-mib", 0, "least memory of a GPU that a container may ask for in MiB; 0 is any")
	flags.UintVar(&m.Percent, "min-share-percent", 0, "least percent of a GPU that a container may ask for, of compute and of memory; 0 is any")
}

// Validate refuses a minimum that no share reaches.
func (m Minimum) Validate() error {
	if m.Percent > uint(api.WholeGPU) {
		return fmt.Errorf("--min-share-percent %d: a GPU has %d", m.Percent, api.WholeGPU)
	}
	return nil
}

// Check refuses a share below the minimum. path is the field path of the container's
// resources.
func (m Minimum) Check(share api.Share, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	atLeast := func(least uint, have int64, name corev1.ResourceName, unit string) {
		if have > 0 && have < int64(least) {
			errs = append(errs, field.Invalid(path.Child("limits").Key(string(name)), have*int64(share.GPUs), fmt.Sprintf(
				"this cluster gives at least %d %s of a GPU: ask for %d or more", least, unit, int64(least)*int64(share.GPUs))))
		}
	}
	atLeast(m.Percent, int64(share.Core), api.ResourceCore, "percent")
	atLeast(m.Percent, int64(share.MemPercent), api.ResourceMemPercent, "percent")
	atLeast(m.MemMiB, int64(share.MemMiB), api.ResourceMemMiB, "MiB")
	return errs
}
