// SPDX-License-Identifier: Apache-2.0

// Package guard owns the ways around a share that a pod's own manifest opens.
// A field that gives a container the node, its devices or another tenant's processes is
// refused in a pod that asks for a share. Environment that would steer the
// GPU or the limiter is removed.
//
// It never judges a pod that asks for nothing: who may run privileged pods is
// the cluster's own decision.
package guard

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// Pod refuses what the pod as a whole must not have beside a share. It may
// mount no folders of the node but allowedHostPaths; where there are none, all folders that
// do not open the node.
func Pod(pod *slim.Pod, allowedHostPaths []string) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if pod.Spec.NodeName != "" {
		errs = append(errs, field.Forbidden(spec.Child("nodeName"),
			"the pod would start without being placed: remove it, and use nodeSelector or nodeAffinity to name nodes"))
	}
	if pod.Spec.HostPID {
		errs = append(errs, field.Forbidden(spec.Child("hostPID"),
			"shows and opens the processes of other pods on the node: remove it, or run this in a pod without a share"))
	}
	if pod.Spec.HostIPC {
		errs = append(errs, field.Forbidden(spec.Child("hostIPC"),
			"shares memory with other pods' GPU processes: remove it; for a large /dev/shm mount an emptyDir with medium Memory there"))
	}
	return append(errs, hostPaths(pod.Spec.Volumes, allowedHostPaths, spec.Child("volumes"))...)
}

// capabilities that open the node, or other processes on it, to a container.
var capabilities = []string{"ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN",
	"SYS_BOOT", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"}

// Container refuses what no container of a pod with a share must have. They
// share volumes and a network, with the share or without.
func Container(c *slim.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	security := at.Child("securityContext")
	if c.SecurityContext.Privileged {
		errs = append(errs, field.Forbidden(security.Child("privileged"),
			"a privileged container reaches every GPU of the node: remove it, or run this container in a pod without a share"))
	}
	for i, name := range c.SecurityContext.Capabilities.Add {
		if slices.Contains(capabilities, strings.TrimPrefix(strings.ToUpper(name), "CAP_")) {
			errs = append(errs, field.Forbidden(security.Child("capabilities", "add").Index(i),
				fmt.Sprintf("%s opens the node or other processes to the container: remove it, or run this in a pod without a share", name)))
		}
	}
	errs = append(errs, whole(c.Resources.Limits, at.Child("resources", "limits"))...)
	if len(errs) == 0 {
		errs = append(errs, whole(c.Resources.Requests, at.Child("resources", "requests"))...)
	}
	return errs
}

// sharedMemory is where CUDA's processes share files.
const sharedMemory = "/dev/shm"

// SharedMemory refuses a volume in place of the memory that a client of MPS shares with its
// server and the other clients on its GPU.
func SharedMemory(c *slim.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range c.VolumeMounts {
		where := path.Clean("/" + c.VolumeMounts[i].MountPath)
		if where == sharedMemory || strings.HasPrefix(where, sharedMemory+"/") {
			errs = append(errs, field.Forbidden(at.Child("volumeMounts").Index(i).Child("mountPath"), fmt.Sprintf(
				"in mode mps %s is the GPU's own, which the server and all its clients share. Remove the mount (there is more room than in a pod's own), or use another mode", sharedMemory)))
		}
	}
	return errs
}

// whole refuses GPUs of NVIDIA's device plugin: it and Vernier would both hand
// out the same devices, neither knowing of the other.
func whole(list corev1.ResourceList, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, q := range list {
		if q.IsZero() {
			continue
		}
		if strings.HasPrefix(string(name), "nvidia.com/gpu") || strings.HasPrefix(string(name), "nvidia.com/mig-") {
			errs = append(errs, field.Forbidden(at.Key(string(name)),
				"a pod takes its GPUs from Vernier or from NVIDIA's device plugin, not from both: remove the one or the other"))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

// Bounds refuses a pod with a share that carries more than any part of Vernier is to
// read. It comes before everything else that reads the pod.
func Bounds(pod *slim.Pod) field.ErrorList {
	spec, annotations := field.NewPath("spec"), field.NewPath("metadata", "annotations")
	var errs field.ErrorList
	atMost := func(most, have int, at *field.Path, remedy string) {
		if have > most {
			errs = append(errs, field.Invalid(at, have, fmt.Sprintf("a pod with a share may have at most %d: %s", most, remedy)))
		}
	}
	atMost(api.MaxSharePodContainers, len(pod.Spec.Containers)+len(pod.Spec.InitContainers), spec.Child("containers"),
		"make several pods of it (init containers count as well)")
	atMost(api.MaxShareVolumes, len(pod.Spec.Volumes), spec.Child("volumes"), "mount folders that contain several of them")
	atMost(api.MaxShareGates, len(pod.Spec.SchedulingGates), spec.Child("schedulingGates"),
		"remove gates that no controller waits for")
	atMost(api.MaxShareAnnotations, len(pod.Metadata.Annotations), annotations, "remove some, or keep them in a ConfigMap")
	if len(errs) > 0 {
		return errs
	}
	capabilities := 0
	for c := range pod.All() {
		capabilities += len(c.SecurityContext.Capabilities.Add)
	}
	atMost(api.MaxShareCapabilities, capabilities, spec.Child("containers"), "these are the capabilities that its containers add: remove some")
	if err := api.CheckSchedulingTerms(&corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations, TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints}); err != nil {
		errs = append(errs, field.Forbidden(spec, err.Error()))
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(pod.Metadata.Annotations)) {
		value := pod.Metadata.Annotations[key]
		total += len(key) + len(value)
		if len(value) > api.MaxAnnotationBytes && (strings.HasPrefix(key, api.Prefix) || strings.HasPrefix(key, requiredPlugins)) {
			errs = append(errs, field.Invalid(annotations.Key(key), field.OmitValueType{},
				fmt.Sprintf("has %d bytes, %d are allowed: shorten or remove it", len(value), api.MaxAnnotationBytes)))
		}
	}
	if total > validation.TotalAnnotationSizeLimitB {
		// The API server says so too, once everybody has read them.
		errs = append(errs, field.TooLong(annotations, "", validation.TotalAnnotationSizeLimitB))
	}
	return errs
}

// Env sorts the variables of a container in a pod with a share; shared reports
// whether it has one itself. The remove are indexes into c.Env, ascending.
//
// Variables that manifests for whole GPUs often carry are removed, with a warning,
// so that they work unchanged. Those that only a forger would write are refused. Those that
// many images need for good reasons (LD_PRELOAD of an allocator) stay, and the
// user gets a warning. Variables of the image and of envFrom are not seen here: the node
// agent applies the same rule to them.
func Env(c *slim.Container, shared bool, path *field.Path) (remove []int, warnings []string, errs field.ErrorList) {
	for i := range c.Env {
		name := c.Env[i].Name
		switch api.EnvRuleOf(name, shared) {
		case api.EnvDropped:
			remove = append(remove, i)
			text := "removed: it would lead the container to an MPS server that is not its share's"
			if name == api.EnvVisibleDevices {
				text = "removed: a container sees the GPUs of its share and no others"
			}
			warnings = append(warnings, warning(path, name, text))
		case api.EnvWarned:
			warnings = append(warnings, warning(path, name, "kept: a library loaded this way must not intercept the CUDA driver API, or the share's limits may not hold"))
		case api.EnvReserved:
			errs = append(errs, field.Forbidden(path.Child("env").Index(i).Child("name"),
				fmt.Sprintf("%s: names that begin with %s are Vernier's: choose another", name, api.EnvReservedPrefix)))
		}
	}
	return remove, warnings, errs
}

// Devices warns of a CUDA_VISIBLE_DEVICES in the env of a container with a share, unless it shows
// all that the share has.
func Devices(c *slim.Container, share api.Share, mode api.Mode, path *field.Path) (warnings []string) {
	for i := range c.Env {
		v, gpus := &c.Env[i], int(share.GPUs)
		switch {
		case v.Name != api.EnvCUDADevices || v.ValueFrom == nil && v.Value == api.AllDevices(gpus):
		case v.ValueFrom != nil || api.ChoosesBeyond(v.Value, make([]string, gpus), mode == api.ModeMIG):
			warnings = append(warnings, warning(path, v.Name, fmt.Sprintf(
				"remove it: CUDA numbers the GPUs of the share from 0, and one that the share does not have makes the node agent set %s", api.AllDevices(gpus))))
		default:
			warnings = append(warnings, warning(path, v.Name, fmt.Sprintf("kept: it hides GPUs of the share, which has %d: remove it to see all", gpus)))
		}
	}
	return warnings
}

func warning(path *field.Path, name, text string) string {
	return path.Child("env").Key(name).String() + ": " + text
}
