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
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
