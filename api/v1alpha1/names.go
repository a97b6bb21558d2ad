// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Group and Version of the API. Prefix is what every name of ours starts with:
// a pod that does not contain it is not ours.
const (
	Group   = "vernier.dev"
	Version = "v1alpha1"
	Prefix  = Group + "/"
)

// SystemNamespace is where the webhook, the allocator and the node agent live.
// The admission policies name their service accounts, so it is fixed.
const SystemNamespace = "vernier-system"

// Service accounts, all in SystemNamespace.
const (
	WebhookServiceAccount   = "vernier-webhook"
	AllocatorServiceAccount = "vernier-allocator"
	NodeServiceAccount      = "vernier-node"
	// MetricsServiceAccount is no part's: it may read the parts' metrics.
	MetricsServiceAccount = "vernier-metrics"
)

// Extended resources that a container may ask for, as limits. Integers. All are
// totals of the container, spread evenly over its GPUs.
const (
	// ResourceCore is percent of a GPU's compute, 1 to 100 for each GPU. Without it
	// there is no compute quota: the container runs in what the others leave.
	ResourceCore corev1.ResourceName = Prefix + "gpu-core"
	// ResourceMemPercent is percent of a GPU's memory, 1 to 100 for each GPU. Without
	// it, and without ResourceMemMiB, it is the percent of ResourceCore.
	ResourceMemPercent corev1.ResourceName = Prefix + "gpu-mem"
	// ResourceMemMiB is memory in MiB, 1 or more, instead of ResourceMemPercent.
	ResourceMemMiB corev1.ResourceName = Prefix + "gpu-mem-mib"
	// ResourceGPUs is the number of distinct GPUs that the share is spread over, 1 to
	// 16. Without it: ResourceCore / 100, rounded up, and 1 without ResourceCore.
	ResourceGPUs corev1.ResourceName = Prefix + "gpu"
)

// Extended resources of an idle slice: GPU time that nobody else wants, and memory that is promised
// to nobody. A container asks for both, of one GPU, and for none of the others.
const (
	// ResourceIdleCore is percent of a GPU's compute, 1 to 100. The slice is placed where so much is
	// expected to be idle.
	ResourceIdleCore corev1.ResourceName = Prefix + "idle-core"
	// ResourceIdleMemMiB is memory in MiB, 1 or more. It is limited like that of other slices.
	ResourceIdleMemMiB corev1.ResourceName = Prefix + "idle-mem-mib"
)

// Resources lists every extended resource of ours.
var Resources = []corev1.ResourceName{ResourceCore, ResourceMemPercent, ResourceMemMiB, ResourceGPUs, ResourceIdleCore, ResourceIdleMemMiB}

// Ours returns the names in a map that begin with Prefix, sorted.
func Ours[N ~string, V any](named map[N]V) (names []N) {
	for name := range named {
		if strings.HasPrefix(string(name), Prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Asked returns the resources of ours of which a list has more than none, sorted. Templates
// leave zeros behind, and a LimitRange that gives nothing by default writes them.
func Asked(list corev1.ResourceList) []corev1.ResourceName {
	return slices.DeleteFunc(Ours(list), func(name corev1.ResourceName) bool {
		q := list[name]
		return q.IsZero()
	})
}

// Annotations that a user may set on a pod.
const (
	// AnnotationMode is how the shares are held: auto (when absent), limiter, mps, mig
	// or exclusive.
	AnnotationMode = Prefix + "mode"
	// AnnotationPolicy is which GPUs are taken first: pack (when absent), those in use,
	// or spread, the emptiest.
	AnnotationPolicy = Prefix + "policy"
	// AnnotationGPUModel is a list of models, separated by commas; ! before one excludes
	// it. When absent, any.
	AnnotationGPUModel = Prefix + "gpu-model"
	// AnnotationGPUUUID is the same by UUID.
	AnnotationGPUUUID = Prefix + "gpu-uuid"
	// AnnotationSameGPU is required where all containers of the pod have to be on one GPU.
	// When absent, they are where that leaves no less of the node for others.
	AnnotationSameGPU = Prefix + "same-gpu"
	// AnnotationBurst is the GPU time that may be used beyond the compute quota: idle, the time
	// that nobody else on the GPU wants. When absent, none.
	AnnotationBurst = Prefix + "burst"
	// AnnotationQoS is the containers' part of the node: opportunistic, processors and memory that
	// others leave; burstable, compute that may be over-committed. When absent, guaranteed.
	AnnotationQoS = Prefix + "qos"
	// AnnotationTopology is how near to each other the GPUs of the pod are: nvlink, pcie, numa
	// or rdma. With :required after it the pod waits for that. When
	// absent, anywhere on a node.
	AnnotationTopology = Prefix + "topology"
	// AnnotationRDMA is near where the containers with a share are given the device nodes of
	// the RDMA devices near their GPUs. When absent, none.
	AnnotationRDMA = Prefix + "rdma"
	// AnnotationAdvice is the use of advice, on a pod or its namespace: show (when absent) or off. With
	// initial new pods start with the advised amounts.
	AnnotationAdvice = Prefix + "advice"
	// AnnotationStart is with how much of their shares containers begin, as a document (Resize).
	// When absent, with all.
	AnnotationStart = Prefix + "start"
	// AnnotationResize are the amounts that containers of a running pod are to have, as a document
	// (Resize). It is the one that may change. When absent, as they are.
	AnnotationResize = Prefix + "resize"
	// AnnotationReservedFor is the UID of Kueue's Workload, in the pod's namespace, whose reserved room
	// the pod takes. Kueue writes it. When absent, none.
	AnnotationReservedFor = Prefix + "reserved-for"
)

// Annotations that only the system writes.
const (
	// AnnotationShares is exactly what every container asks for, as a document. The
	// webhook writes it.
	AnnotationShares = Prefix + "shares"
	// AnnotationPlacement is where the containers got their slices, as a document. The
	// allocator writes it.
	AnnotationPlacement = Prefix + "placement"
	// AnnotationDialect names the system that a pod was written for. The webhook
	// writes it where it has translated the pod; the node agent sets the variables
	// that the containers of such a pod look for.
	AnnotationDialect = Prefix + "dialect"
)

// Annotations of others that guard a slice.
const (
	// AnnotationRequiredPlugins makes containerd's default validator refuse a
	// pod's containers while one of the NRI plugins that it lists is not
	// connected. Its value is a YAML list of plugin names.
	AnnotationRequiredPlugins = "required-plugins.noderesource.dev/pod"
	// RequiredPluginsPrefix is shared by all forms of that annotation.
	RequiredPluginsPrefix = "required-plugins.noderesource.dev/"
	// AnnotationNVIDIACDIPrefix is what NVIDIA's own NRI plugin obeys: it
	// injects any CDI device that a pod names, past every slice.
	AnnotationNVIDIACDIPrefix = "nvidia.cdi.k8s.io"
	// AnnotationCDIPrefix is the runtime's own CDI annotation.
	AnnotationCDIPrefix = "cdi.k8s.io/"
)

// PodConditionGPUHealthy is false on a pod while a device or MIG instance of its
// slices is unhealthy or gone. It is false too while its devices lack the required topology. It is
// true once that is over. Pods that were never concerned don't have it.
const PodConditionGPUHealthy corev1.PodConditionType = Prefix + "gpu-healthy"

// PodConditionResize is how far the resize is that the annotation asks for. It is true while that
// is not in force, and false when it is.
const PodConditionResize corev1.PodConditionType = Prefix + "Resize"

// PodConditionGPUIdle is true on a pod of which no container has done work on its GPUs for the
// chart's idle.after. lastTransitionTime is since when. The allocator writes it; a pod that was
// never idle for so long has none.
const PodConditionGPUIdle corev1.PodConditionType = Prefix + "GPUIdle"

// Gate is the scheduling gate that holds a pod until it is placed.
const Gate = Prefix + "placement"

// AdmissionCheckController is the controllerName of an AdmissionCheck of Kueue's that the allocator answers.
const AdmissionCheckController = Prefix + "placement"

// LabelInject on a namespace, with value LabelInjectEnabled: its pods may ask for
// shares.
const (
	LabelInject        = Prefix + "inject"
	LabelInjectEnabled = "enabled"
)

// LabelRDMA on a namespace, with value LabelRDMAEnabled: its pods may ask for the device nodes of
// RDMA devices (AnnotationRDMA).
const (
	LabelRDMA        = Prefix + "rdma"
	LabelRDMAEnabled = "enabled"
)

// LabelPriorityClassPrefix with the name of a PriorityClass, on a namespace, with value
// LabelPriorityClassEnabled. Pods with shares of the class count with its priority against pods of
// other namespaces too. They may be of a class whose name begins with system-. Only who may create
// PriorityClasses may change such labels.
const (
	LabelPriorityClassPrefix  = "priority-class.vernier.dev/"
	LabelPriorityClassEnabled = "enabled"
)

// LabelGPULimit on a ResourceQuota: it is the limit of GPUs of its namespace, and the value how many. Pods there
// hold no shares that it does not count.
const LabelGPULimit = Prefix + "gpu-limit"

// LabelMovable on a pod, with value LabelMovableTrue: it may be evicted so that another pod fits.
// Before that, room is kept for the pod that its controller makes instead.
const (
	LabelMovable     = Prefix + "movable"
	LabelMovableTrue = "true"
)

// LabelGPUNode on a node, with value LabelGPUNodeTrue: the node agent runs there.
const (
	LabelGPUNode     = Prefix + "gpu-node"
	LabelGPUNodeTrue = "true"
)

// LabelGPUModel on a node: the model of its GPUs, where all are of one. Characters that labels cannot have are -. The
// allocator writes it.
const LabelGPUModel = Prefix + "gpu-model"

// LabelGPUCount on a node: how many GPUs it has. The allocator writes it.
const LabelGPUCount = Prefix + "gpu-count"

// LabelGPUMemMiB on a node: the memory of the GPU with least, in MiB. The allocator writes it.
const LabelGPUMemMiB = Prefix + "gpu-mem-mib"

// TaintAgentNotReady on a node keeps pods off until its ledger takes slices. Autoscalers put it on the nodes that they
// make, as a startup taint. The allocator removes it.
const TaintAgentNotReady = Prefix + "agent-not-ready"

// LabelMIGMode on a node, with value LabelMIGModeEnabled. Its GPUs are put into MIG mode
// as soon as nothing is on them, where that takes no reset.
const (
	LabelMIGMode        = Prefix + "mig-mode"
	LabelMIGModeEnabled = "enabled"
)

// NRI identity of the node agent.
const (
	NRIPluginName  = "vernier"
	NRIPluginIndex = "10"
)

// RequiredPluginsValue is what the webhook writes as AnnotationRequiredPlugins.
const RequiredPluginsValue = `["` + NRIPluginName + `"]`

// Values of AnnotationDialect that the node agent knows. Others mean nothing to it.
const (
	DialectGPUShareGiB = "gpushare/GiB"
	DialectGPUShareMiB = "gpushare/MiB"
	DialectHAMi        = "hami"
	DialectVolcano     = "volcano"
	DialectKAI         = "kai"
)

// CDI vendor and class of the devices that the node agent injects: a device is
// named vernier.dev/gpu=<UUID>.
const (
	CDIVendor = Group
	CDIClass  = "gpu"
	CDIKind   = CDIVendor + "/" + CDIClass
)

// Environment of a container with a slice.
const (
	// EnvSlice marks a container that the node agent has prepared; its value is
	// the pod's UID. Its absence on a running container that has a slice means
	// that the container started without us.
	EnvSlice = "VERNIER_SLICE"
	// EnvVisibleDevices is what NVIDIA's runtimes read; "void" gives nothing.
	EnvVisibleDevices     = "NVIDIA_VISIBLE_DEVICES"
	EnvVisibleDevicesVoid = "void"
	// EnvCUDADevices chooses and orders, of the devices that a container has, those that
	// CUDA shows to its programs.
	EnvCUDADevices = "CUDA_VISIBLE_DEVICES"
	// EnvNearHCAs are the names of the RDMA devices near the container's GPUs, separated by
	// commas, as NCCL_IB_HCA takes them.
	EnvNearHCAs = "VERNIER_NEAR_HCAS"
	// EnvReservedPrefix begins the variables that are Vernier's.
	EnvReservedPrefix = "VERNIER_"
)

// Bounds.
const (
	// MaxDevices bounds the devices of a node.
	MaxDevices = 32
	// MaxContainerDevices bounds the devices of a container: it is what the
	// limiter's files have room for, and as many as one machine has.
	MaxContainerDevices = 16
	// MaxSlicesPerDevice bounds the slices of a device; with MaxDevices it keeps
	// the rules of the CRD within the API server's cost budget.
	MaxSlicesPerDevice = 256
	// MaxMPSSlices bounds those of a device in mode mps. An MPS server takes 48
	// clients on every GPU since Volta, and each slice is at least one.
	MaxMPSSlices = 48
)
