// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// volumeDevices is where NVIDIA's runtime, when so configured, reads a request
// for devices from the container's mounts.
const volumeDevices = "/var/run/nvidia-container-devices/"

// ValidateContainerAdjustment sees the container as all plugins together have
// made it. It vetoes one that would reach a GPU past its slices, or that lacks
// what we gave it.
func (p *Plugin) ValidateContainerAdjustment(_ context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	pod, c := req.GetPod(), req.GetContainer()
	if err := p.validate(pod, c, req.GetAdjust()); err != nil {
		p.Log.Error(err, "Vetoed container", "pod", owner(pod), "container", c.GetName())
		return refusal(pod, c, err)
	}
	return nil
}

func (p *Plugin) validate(pod *api.PodSandbox, c *api.Container, adjust *api.ContainerAdjustment) error {
	entry, entered := p.Table.Get(c.GetId())
	if entered {
		if err := contains(adjust, entry.Adjust); err != nil {
			return fmt.Errorf("%w; find the NRI plugin that changes it and exclude this pod from it", err)
		}
		if err := uncovered(c, adjust, entry.Adjust); err != nil {
			return err
		}
		if err := restored(adjust, entry.Adjust, entry.Grants); err != nil {
			return err
		}
	} else if request := podrequest.OfAnnotations(pod.GetAnnotations()); request.Marked {
		if request.SharesErr != nil {
			return request.SharesErr
		}
		if _, asked := request.Shares[c.GetName()]; asked {
			return errors.New("it asks for a slice and was not given one; it is tried again")
		}
	}
	if isPrivileged(c) {
		return nil
	}
	if !entered && !hasKeyValue(adjust.GetEnv(), v1alpha1.EnvVisibleDevices, v1alpha1.EnvVisibleDevicesVoid) {
		return fmt.Errorf("another NRI plugin has taken %s=%s away; exclude this pod from it", v1alpha1.EnvVisibleDevices, v1alpha1.EnvVisibleDevicesVoid)
	}
	return foreign(c, adjust, entry.Adjust)
}

// contains tells what of ours is missing from the sum of all adjustments.
func contains(all, ours *api.ContainerAdjustment) error {
	if all == nil || ours == nil {
		return errors.New("its slices are missing from the adjustments")
	}
	for _, e := range ours.GetEnv() {
		if !hasKeyValue(all.GetEnv(), e.GetKey(), e.GetValue()) {
			return fmt.Errorf("%s=%s is missing from its environment", e.GetKey(), e.GetValue())
		}
	}
	for _, d := range ours.GetCDIDevices() {
		if !hasCDI(all, d.GetName()) {
			return fmt.Errorf("device %s is missing", d.GetName())
		}
	}
	for _, d := range ours.GetLinux().GetDevices() {
		if !hasDevice(all, d) {
			return fmt.Errorf("device node %s is missing or not ours", d.GetPath())
		}
	}
	for _, m := range ours.GetMounts() {
		if !hasMount(all.GetMounts(), m) {
			return fmt.Errorf("mount %s is missing or not ours", m.GetDestination())
		}
	}
	return nil
}

// sharedMemory is in every container, from the runtime. Where ours has just that path,
// NRI puts it in the other's place.
const sharedMemory = "/dev/shm"

// uncovered refuses a mount at or below one of ours: the runtime mounts it after
// ours, or takes its place. Any spelling of a path counts.
func uncovered(c *api.Container, adjust, ours *api.ContainerAdjustment) error {
	for i, mounts := range [][]*api.Mount{c.GetMounts(), adjust.GetMounts()} {
		for _, m := range mounts {
			if i == 0 && m.GetDestination() == sharedMemory {
				continue
			}
			destination := path.Clean(m.GetDestination())
			for _, own := range ours.GetMounts() {
				if within(destination, own.GetDestination()) && !hasMount(ours.GetMounts(), m) {
					return fmt.Errorf("mount %s hides what enforces its slices; remove it", m.GetDestination())
				}
			}
		}
	}
	return nil
}

// foreign finds a way to a GPU that is not ours: a CDI device, a device node or
// a request to NVIDIA's runtime, from another plugin, an annotation or a device
// plugin.
func foreign(c *api.Container, adjust, ours *api.ContainerAdjustment) error {
	for _, d := range adjust.GetCDIDevices() {
		if managesGPU(d.GetName()) && !hasCDI(ours, d.GetName()) {
			return fmt.Errorf("another NRI plugin injects CDI device %s; remove annotation %s from the pod", d.GetName(), v1alpha1.AnnotationNVIDIACDIPrefix)
		}
	}
	for _, d := range c.GetCDIDevices() {
		if managesGPU(d.GetName()) {
			return fmt.Errorf("it is given CDI device %s past its slices; ask for %s instead", d.GetName(), v1alpha1.ResourceCore)
		}
	}
	for key, value := range c.GetAnnotations() {
		if !strings.HasPrefix(key, v1alpha1.AnnotationCDIPrefix) {
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			if managesGPU(name) {
				return fmt.Errorf("annotation %s gives it CDI device %s past its slices; remove it", key, name)
			}
		}
	}
	for _, devices := range [][]*api.LinuxDevice{c.GetLinux().GetDevices(), adjust.GetLinux().GetDevices()} {
		for _, d := range devices {
			if isGPUNode(d.GetPath()) || d.GetType() == "c" && d.GetMajor() == NVIDIAMajor {
				return fmt.Errorf("it is given device node %s past its slices; remove NVIDIA's device plugin from this node or ask for %s instead", d.GetPath(), v1alpha1.ResourceCore)
			}
		}
	}
	for _, mounts := range [][]*api.Mount{c.GetMounts(), adjust.GetMounts()} {
		for _, m := range mounts {
			// Cleaned: the runtime takes any spelling of the path.
			if strings.HasPrefix(path.Clean(m.GetDestination())+"/", volumeDevices) {
				return fmt.Errorf("mount %s asks NVIDIA's runtime for a device past its slices; remove it", m.GetDestination())
			}
		}
	}
	return nil
}

// NVIDIAMajor is the character device number of /dev/nvidiaN and /dev/nvidiactl.
const NVIDIAMajor = 195

// isGPUNode reports whether a path is one of the driver's nodes.
func isGPUNode(node string) bool { return strings.HasPrefix(path.Clean(node), "/dev/nvidia") }

// managesGPU reports whether a CDI device, vendor/class=name, is one of ours or of
// NVIDIA's, whatever tool of theirs has written its spec.
func managesGPU(name string) bool {
	vendor, _, _ := strings.Cut(strings.TrimSpace(name), "/")
	return vendor == v1alpha1.CDIVendor || vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")
}

// hasKeyValue reports whether an environment has exactly that setting; the last one of a
// name counts.
func hasKeyValue(env []*api.KeyValue, key, value string) bool {
	last := lastOf(env, func(e *api.KeyValue) bool { return e.GetKey() == key })
	return last != nil && last.GetValue() == value
}

// lastOf is the last that fits, which is the one that counts; nil without any.
func lastOf[T any](all []*T, fits func(*T) bool) *T {
	for _, one := range slices.Backward(all) {
		if fits(one) {
			return one
		}
	}
	return nil
}

func hasCDI(a *api.ContainerAdjustment, name string) bool {
	return slices.ContainsFunc(a.GetCDIDevices(), func(d *api.CDIDevice) bool { return d.GetName() == name })
}

// hasDevice reports whether the last device node at the path is that one.
func hasDevice(a *api.ContainerAdjustment, want *api.LinuxDevice) bool {
	last := lastOf(a.GetLinux().GetDevices(), func(d *api.LinuxDevice) bool { return d.GetPath() == want.GetPath() })
	return last != nil && last.GetMajor() == want.GetMajor() && last.GetMinor() == want.GetMinor()
}

// within reports whether a clean path is the folder or below it.
func within(p, folder string) bool {
	return strings.HasPrefix(p, folder) && (len(p) == len(folder) || p[len(folder)] == '/')
}

// hasMount reports whether the last mount on the destination is that one.
func hasMount(mounts []*api.Mount, want *api.Mount) bool {
	last := lastOf(mounts, func(m *api.Mount) bool { return m.GetDestination() == want.GetDestination() })
	return last != nil && last.GetSource() == want.GetSource() && last.GetType() == want.GetType()
}
