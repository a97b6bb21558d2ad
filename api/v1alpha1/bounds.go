// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Bounds of what a pod may carry. A tenant writes all of it, and every part reads it:
// what is beyond a bound is refused at creation, before anything else is read. The
// admission policies have the same numbers (deploy/chart/templates/_policy.tpl), which a
// test compares.
const (
	// MaxPodContainers bounds the containers of any pod, init containers among them. The
	// API server looks at each to find out whether it asks for a share.
	MaxPodContainers = 512
	// MaxSharePodContainers bounds those of a pod with a share, and twice as many with
	// ephemeral ones, which are added while it runs.
	MaxSharePodContainers = 64
	// MaxShareContainers bounds the containers of a pod that ask for a share. Each takes
	// a slot on a device, of which there are MaxSlicesPerDevice.
	MaxShareContainers = 16
	// MaxShareAnnotations bounds the annotations of a pod with a share.
	MaxShareAnnotations = 256
	// MaxShareGates bounds the scheduling gates of a pod with a share.
	MaxShareGates = 32
	// MaxShareVolumes bounds the volumes of a pod with a share, MaxShareHostPaths those of
	// type hostPath, and MaxHostPath the characters of such a path.
	MaxShareVolumes   = 512
	MaxShareHostPaths = 32
	MaxHostPath       = 256
	// MaxShareCapabilities bounds the capabilities that the containers of a pod with a
	// share add together.
	MaxShareCapabilities = 256
	// MaxPluginLists bounds the annotations of a pod with a share by which it names NRI
	// plugins besides Vernier's.
	MaxPluginLists = 16
	// MaxAnnotationBytes bounds each annotation that Vernier reads, but for the documents
	// that it writes.
	MaxAnnotationBytes = 4096
	// MaxAllowListItems bounds the items of AnnotationGPUModel and AnnotationGPUUUID:
	// every device of the cluster is compared with each.
	MaxAllowListItems = 64
)
