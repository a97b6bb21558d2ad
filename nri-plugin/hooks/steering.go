// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/environ"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// ReasonVariables is the reason of the event: variables of a container steer the GPU.
const ReasonVariables = "GPUVariables"

// maxReplaced bounds the variables that are replaced in one container: each is compared
// with all that the plugins of the node have set.
const maxReplaced = 64

// mpsDefaults are what CUDA takes where the variable is not set. Others have no default
// that NVIDIA documents, and are emptied.
var mpsDefaults = map[string]string{
	"CUDA_MPS_PIPE_DIRECTORY":                                    "/tmp/nvidia-mps",
	"CUDA_MPS_LOG_DIRECTORY":                                     "/var/log/nvidia-mps",
	"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE":                          "100",
	"CUDA_MPS_CLIENT_PRIORITY":                                   "0",
	"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "0",
}

// steering are the variables of a container that would steer CUDA past its slices.
type steering struct {
	// replaced have the value that they get.
	replaced []environ.Variable
	// warned stay.
	warned []string
}

// steers reads the variables of a container with slices, whatever their source. It refuses
// those that only a forger sets, and those that cannot be replaced.
//
// NRI cannot remove a variable: its adaptation passes the removal of one that no plugin has
// set to nobody. What is to go gets its default instead, and with a name that is there twice,
// from the image and from the pod, the second entry would win over that.
func steers(c *api.Container, grants []ledger.Grant) (s steering, err error) {
	devices := uuids(grants)
	mig := len(grants) > 0 && grants[0].Mode == v1alpha1.ModeMIG
	values, twice := map[string]string{}, map[string]bool{}
	var names []string
	for _, entry := range c.GetEnv() {
		name, value, _ := strings.Cut(entry, "=")
		switch rule := v1alpha1.EnvRuleOf(name, true); {
		case name == v1alpha1.EnvVisibleDevices:
			continue // maskVisibleDevices sets it
		case name == v1alpha1.EnvCUDADevices, rule == v1alpha1.EnvDropped, rule == v1alpha1.EnvWarned:
		default:
			continue
		}
		if _, known := values[name]; known {
			twice[name] = true
		} else {
			names = append(names, name)
		}
		values[name] = value
	}
	for _, name := range names {
		value := mpsDefaults[name]
		switch {
		case v1alpha1.EnvRuleOf(name, true) == v1alpha1.EnvWarned:
			s.warned = append(s.warned, name)
			continue
		case name == v1alpha1.EnvCUDADevices:
			if !v1alpha1.ChoosesBeyond(values[name], devices, mig) {
				continue
			}
			value = v1alpha1.AllDevices(len(grants))
		}
		if twice[name] {
			return s, fmt.Errorf("%.64q is set more than once, by the image and by the pod, so it cannot be replaced, and it would lead past its slices. Remove it from the pod (env, and the ConfigMaps and Secrets of envFrom)", name)
		}
		if len(s.replaced) == maxReplaced {
			return s, fmt.Errorf("its image or envFrom has more than %d variables that steer the GPU, as %.64q. Remove them from the image, or from the ConfigMap or Secret", maxReplaced, name)
		}
		s.replaced = append(s.replaced, environ.Variable{Name: name, Value: value})
	}
	return s, nil
}

// reserved refuses the mark of our own preparation from anybody else. Other variables that
// begin like it have no effect, and a Service's name can bring them into every pod.
func reserved(c *api.Container) error {
	for _, entry := range c.GetEnv() {
		if strings.HasPrefix(entry, v1alpha1.EnvSlice+"=") {
			return fmt.Errorf("%s is Vernier's, and its image or envFrom sets it; remove it from the image, or from the ConfigMap or Secret", v1alpha1.EnvSlice)
		}
	}
	return nil
}

// adjust replaces the variables, but for those that the slice's mode sets itself.
func (s steering) adjust(adjust *api.ContainerAdjustment) {
	for _, v := range s.replaced {
		if !slices.ContainsFunc(adjust.GetEnv(), func(own *api.KeyValue) bool { return own.GetKey() == v.Name }) {
			adjust.AddEnv(v.Name, v.Value)
		}
	}
}

// message is the event's, empty for none. own are the variables of the container's env.
func (s steering) message(container string, own []string) string {
	var parts []string
	add := func(names []string, fate string) {
		var inEnv, elsewhere []string
		for _, name := range names {
			if slices.Contains(own, name) {
				inEnv = append(inEnv, name)
			} else {
				elsewhere = append(elsewhere, name)
			}
		}
		if len(inEnv) > 0 {
			parts = append(parts, fmt.Sprintf("of its env in the pod %s %s", some(inEnv), fate))
		}
		if len(elsewhere) > 0 {
			parts = append(parts, fmt.Sprintf("of its image, or of a ConfigMap or Secret by envFrom, %s %s", some(elsewhere), fate))
		}
	}
	replaced := make([]string, len(s.replaced))
	for i, v := range s.replaced {
		replaced[i] = v.Name
	}
	add(replaced, "would lead past its share and is replaced by CUDA's default; remove it there")
	add(s.warned, "is kept: a library loaded this way must not intercept the CUDA driver API, or the share's limits may not hold")
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("container %s: %s", container, strings.Join(parts, "; "))
}

// some are the first of the names.
func some(names []string) string {
	const most = 4
	all := slices.Clone(names)
	for i, name := range all[:min(len(all), most)] {
		all[i] = fmt.Sprintf("%.64q", name)
	}
	return v1alpha1.NamesText(all, most)
}

// restored refuses what another plugin sets that admission or we would not let through.
func restored(adjust, ours *api.ContainerAdjustment, grants []ledger.Grant) error {
	all := make([]string, 0, len(adjust.GetEnv()))
	for _, e := range adjust.GetEnv() {
		if !hasKeyValue(ours.GetEnv(), e.GetKey(), e.GetValue()) {
			all = append(all, e.GetKey()+"="+e.GetValue())
		}
	}
	s, err := steers(&api.Container{Env: all}, grants)
	if err != nil {
		return err
	}
	if len(s.replaced) > 0 {
		return fmt.Errorf("another NRI plugin sets %.64q, which leads past its slices; exclude this pod from it", s.replaced[0].Name)
	}
	return nil
}

// maskVisibleDevices has NVIDIA's runtimes give the container nothing, with slices as well: the
// devices come by CDI, and a runtime must not add what the variable would name.
//
// The runtime lists the image's and the pod's environment one after the other,
// and NRI replaces the first entry of a name only: a second one would win over
// ours, so it must itself ask for nothing.
func maskVisibleDevices(c *api.Container, adjust *api.ContainerAdjustment) error {
	times, last := 0, ""
	for _, entry := range c.GetEnv() {
		if name, value, _ := strings.Cut(entry, "="); name == v1alpha1.EnvVisibleDevices {
			times, last = times+1, value
		}
	}
	if times > 1 && last != v1alpha1.EnvVisibleDevicesVoid && last != "none" && last != "" {
		return fmt.Errorf("%s is set more than once, by the image and by the pod, and the last one asks for %q. Remove it from the pod (ask for a share of a GPU instead), or set it to %q there",
			v1alpha1.EnvVisibleDevices, last, v1alpha1.EnvVisibleDevicesVoid)
	}
	adjust.AddEnv(v1alpha1.EnvVisibleDevices, v1alpha1.EnvVisibleDevicesVoid)
	return nil
}
