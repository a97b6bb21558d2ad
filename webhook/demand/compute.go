// SPDX-License-Identifier: Apache-2.0

// Package demand owns what an operator sets of shares: the least of a container, and
// the namespace's default for containers that ask for memory alone.
package demand

import (
	"flag"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Required stands for a percent where compute has to be asked for.
const Required = "required"

// otherNamespaces stands for each namespace that is not named.
const otherNamespaces = "*"

// Compute is what a namespace gives containers that ask for memory without compute. The
// zero value gives them no quota, as asked for.
type Compute struct {
	// Default is their percent of each of their GPUs, 0 to 100; 0 is no quota.
	Default api.Percent
	// Required has them refused.
	Required bool
}

// ComputeShares are the rules of namespaces by name. The zero value has none.
type ComputeShares map[string]Compute

// ParseComputeShares reads NAMESPACE=PERCENT and NAMESPACE=required, separated by commas.
// PERCENT is 0 to 100; NAMESPACE may be "*", which is each that is not named. An empty list
// has no rules. The minimum is that of every share: a default below it is refused.
func ParseComputeShares(list string, minimum Minimum) (ComputeShares, error) {
	shares := ComputeShares{}
	if list == "" {
		return shares, nil
	}
	for item := range strings.SplitSeq(list, ",") {
		namespace, rule, _ := strings.Cut(item, "=")
		if reasons := validation.IsDNS1123Label(namespace); namespace != otherNamespaces && len(reasons) > 0 {
			return nil, fmt.Errorf("%q does not begin with a namespace or %q: write NAMESPACE=PERCENT or NAMESPACE=%s", item, otherNamespaces, Required)
		}
		if _, twice := shares[namespace]; twice {
			return nil, fmt.Errorf("names %s twice: keep one of the two", namespace)
		}
		compute := Compute{Required: rule == Required}
		if !compute.Required && rule != "0" {
			percent, err := api.ParsePercent(rule)
			if err != nil || percent > api.WholeGPU {
				return nil, fmt.Errorf("%q of namespace %s: write %s, or a whole percent of a GPU from 0 to %d", rule, namespace, Required, api.WholeGPU)
			}
			if uint(percent) < minimum.Percent {
				return nil, fmt.Errorf("%d of namespace %s is below the least share of %d percent, so every pod would be refused: raise it to %d", percent, namespace, minimum.Percent, minimum.Percent)
			}
			compute.Default = percent
		}
		shares[namespace] = compute
	}
	return shares, nil
}

// In is the rule of a namespace.
func (s ComputeShares) In(namespace string) Compute {
	if rule, named := s[namespace]; named {
		return rule
	}
	return s[otherNamespaces]
}

// Fill gives a share without compute the default, and returns the total to write into the
// limits. It is 0 where nothing is missing or nothing is given. The path is the field path of the
// container's resources. Its name and the namespace are for the error.
func (c Compute) Fill(share *api.Share, container, namespace string, path *field.Path) (api.Percent, *field.Error) {
	switch {
	case share.Core > 0:
		return 0, nil
	case c.Required:
		return 0, field.Required(path.Child("limits").Key(string(api.ResourceCore)), fmt.Sprintf(
			"container %s asks for memory only, and namespace %s requires compute (webhook.computeShares of Vernier's chart): add %s, 1 to %d for each GPU",
			container, namespace, api.ResourceCore, api.WholeGPU))
	}
	share.Core = c.Default
	return c.Default * api.Percent(share.GPUs), nil
}

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
