// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// EnvRule is what becomes of a variable of a container in a pod with a share. The webhook
// applies it to env, the node agent to what comes later: the image's and envFrom's.
type EnvRule int

// The rules.
const (
	// EnvPasses: it stays.
	EnvPasses EnvRule = iota
	// EnvDropped: manifests and images made for whole GPUs carry it; it has no effect, and
	// the container works without it.
	EnvDropped
	// EnvWarned: many images need it; it stays, and the user gets a warning.
	EnvWarned
	// EnvReserved: only a forger sets it; the pod or the container is refused.
	EnvReserved
)

// EnvRuleOf is the rule for a variable of that name. shared reports whether the container
// has a share itself.
func EnvRuleOf(name string, shared bool) EnvRule {
	switch {
	case name == EnvVisibleDevices, shared && strings.HasPrefix(name, "CUDA_MPS_"):
		return EnvDropped
	case shared && (name == "LD_PRELOAD" || name == "LD_AUDIT"):
		return EnvWarned
	case strings.HasPrefix(name, EnvReservedPrefix):
		return EnvReserved
	}
	return EnvPasses
}

// ChoosesBeyond reports whether a value of EnvCUDADevices names a device that a container
// does not have. The uuids are those of its whole GPUs, or of the GPU of its one instance of MIG.
func ChoosesBeyond(value string, uuids []string, mig bool) bool {
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		index, err := strconv.Atoi(name)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return !strings.HasPrefix(name, "-")
		case err == nil && index >= len(uuids):
			return true
		case err == nil && index >= 0, strings.HasPrefix(name, "MIG-") && mig, isPrefixOfOne(name, uuids):
			continue
		case strings.HasPrefix(name, "GPU-"), strings.HasPrefix(name, "MIG-"):
			return true
		}
		// CUDA reads no further than a name that is none: "-1" and "NoDevFiles" hide the rest.
		return false
	}
	return false
}

// AllDevices is the value of EnvCUDADevices that shows all of n devices.
func AllDevices(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return strings.Join(all, ",")
}

// isPrefixOfOne reports whether CUDA takes the name for one of the UUIDs.
func isPrefixOfOne(name string, uuids []string) bool {
	return strings.HasPrefix(name, "GPU-") && slices.ContainsFunc(uuids, func(uuid string) bool { return strings.HasPrefix(uuid, name) })
}
