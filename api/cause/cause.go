// SPDX-License-Identifier: Apache-2.0

// Package cause names the ways of a pod with a share to wait or to fail. Every place that says
// why names one of these: events, `kubectl vernier` and the page. It keeps no state.
package cause

import "slices"

// Cause is one way of a pod to wait or to fail, as a CamelCase word. The empty one says that
// nobody knows.
type Cause string

// Annotation is of the allocator's events on pods that wait, and has the cause.
const Annotation = "vernier.dev/cause"

// Causes of a pod that waits for a place.
const (
	OtherGates        Cause = "OtherGates"
	Invalid           Cause = "InvalidRequest"
	NoClass           Cause = "NoGPUClass"
	GangIncomplete    Cause = "GangIncomplete"
	GangInvalid       Cause = "GangInvalid"
	GangUnread        Cause = "GangNotRead"
	GangNoRoom        Cause = "GangNoRoom"
	NoNodeLabel       Cause = "NoNodeLabel"
	WaitsForPod       Cause = "WaitsForPod"
	WriteRefused      Cause = "WriteRefused"
	NoGPU             Cause = "NoGPU"
	NotGranted        Cause = "NodesNotReady"
	NotAllowed        Cause = "GPUNotAllowed"
	NoGPUOfClass      Cause = "NoGPUOfClass"
	TooLarge          Cause = "GPUTooSmall"
	Insufficient      Cause = "InsufficientGPU"
	Excluded          Cause = "GPUExcluded"
	Reserved          Cause = "RoomReserved"
	Topology          Cause = "NoTopology"
	SchedulerRefuses  Cause = "SchedulerRefuses"
	EvictionForbidden Cause = "EvictionForbidden"
	Rollout           Cause = "RolloutBlocked"
	NotLookedAt       Cause = "NotLookedAt"
)

// Causes of a pod that has its place and does not start, or has failed.
const (
	NoPlace       Cause = "NoPlace"
	NoScheduler   Cause = "NoScheduler"
	Unschedulable Cause = "Unschedulable"
	ClaimUnbound  Cause = "ClaimUnbound"
	OldTemplate   Cause = "OldTemplate"
	NodeNotReady  Cause = "NodeNotReady"
	NotStarted    Cause = "ContainerNotStarted"
	Failed        Cause = "PodFailed"
	Preempted     Cause = "Preempted"
)

// Causes of pods that their controller cannot create.
const (
	Quota   Cause = "QuotaExceeded"
	Refused Cause = "PodRefused"
)

// Doc is what a page says of a cause.
type Doc struct {
	Cause Cause
	// Says is the sentence, in which capitals and … stand for what differs. Remedy is what helps,
	// and See the page about it, if there is one.
	Says, Remedy, See string
}

// Docs has every cause.
var Docs = []Doc{
	{OtherGates, "it waits for other gates first: …", "ask the system that has set the gate; Kueue, for one, takes its own off once its queue has room", ""},
	{Invalid, "what it asks for cannot be read: …", "create the pod again, with what the message says", "reference/annotations.md"},
	{NoClass, "container C asks for units of GPUClass NAME: there is no such GPUClass …", "create the class, or create the pod again with one of `kubectl vernier classes`", "concepts/shares.md"},
	{GangUnread, "GROUP: its PodGroup has not been read …", "nothing, for some seconds; longer: the allocator's log says what it may not read", ""},
	{GangInvalid, "GROUP: …", "the message names what is wrong with the group, or with which of its pods", "concepts/gangs.md#what-the-pods-say-while-they-wait"},
	{GangIncomplete, "GROUP: 2 of 3 pods are there …", "create the other pods, or lower the number that start together", "concepts/gangs.md#what-the-pods-say-while-they-wait"},
	{WaitsForPod, "waits for pod NAME to bind: their affinity, spread, volumes or resource claims depend on the order", "nothing, for some seconds; longer: see why that pod is not bound", ""},
	{WriteRefused, "the API server does not let the allocator …", "change the policy or the webhook that refuses the write, or the pod", "operations.md#writes-that-others-refuse"},
	{NoNodeLabel, "no node that takes slices has label KEY …", "label the nodes, or correct the topology of the group", "concepts/gangs.md"},
	{GangNoRoom, "GROUP: room for 2 of the 3 pods that must start together …", "wait, ask for less, or lower the number that start together", "concepts/gangs.md#what-the-pods-say-while-they-wait"},
	{NotGranted, "no node has a GPU that takes slices; 1 node(s) grant nothing now, such as …", "`kubectl vernier nodes -o wide` says what each node lacks, and `kubectl vernier uncordon` ends a cordon", "#the-node-is-not-ready"},
	{NoGPU, "no node has a GPU that takes slices", "label a node with GPUs: `kubectl label node NODE vernier.dev/gpu-node=true`", ""},
	{NoGPUOfClass, "container C of GPUClass NAME: none of the N GPUs is of the class's models …", "correct the models of the class, or add such GPUs; `kubectl vernier classes` has both", ""},
	{NotAllowed, "none of the N GPUs is allowed by the pod's vernier.dev/gpu-model: …", "create it again with one of these models, or with a UUID of `kubectl vernier devices`", ""},
	{TooLarge, "container C needs … of a GPU, and none has so much: the largest is …", "ask for less memory, or add a larger GPU", ""},
	{Topology, "container C needs … on each of 4 GPUs linked to each other by NVLink, as vernier.dev/topology says; nearest: …", "wait, or take :required off the annotation: then the next lower level will do", "concepts/topology.md"},
	{Excluded, "…; NODE GPU 0 has room and is excluded by vernier.dev/gpu-uuid, or is not in MIG mode", "create it again without the annotation, or wait", ""},
	{Reserved, "…, of which 25 % and 20,480 MiB are reserved for others", "wait, or set activeDeadlineSeconds so that it ends before they start; `kubectl vernier fit` names them", "concepts/priority.md#reserved-room"},
	{EvictionForbidden, "…; N pod(s) of lower priority would make room and cannot leave: …", "wait, or change what the message names: a PodDisruptionBudget, for one", "concepts/priority.md#who-is-evicted-and-who-never"},
	{Rollout, "N pods of an earlier template of Deployment/NAME have slices until a new one is ready …", "the message has the command: with maxUnavailable 1 an old pod ends first", ""},
	{Insufficient, "container C needs 30 % compute and 20,480 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free", "wait, ask for less, or free that GPU: `kubectl vernier slices` has who is there", ""},
	{SchedulerRefuses, "N node(s) have the devices, but the scheduler would refuse them: …", "change the pod or the nodes: these are kube-scheduler's words for node selector, taints, CPU, affinity, volumes", ""},
	{NotLookedAt, "there is room since: the allocator looks again", "nothing, for some seconds; longer: no allocator leads, see `kubectl -n vernier-system get pods,leases`", ""},

	{NoPlace, "it holds no gate of Vernier's and has no place", "create it again: somebody has taken the scheduling gate off", ""},
	{ClaimUnbound, "PersistentVolumeClaim NAME is not bound: …", "see to the claim, its class or its provisioner; a pod that is not bound for 10 minutes is given up", ""},
	{NoScheduler, "no scheduler \"NAME\" has looked at it since", "start that scheduler, or create the pod again with default-scheduler; it keeps its slices for 10 minutes", ""},
	{Unschedulable, "it has its place on node NODE, and the scheduler has not bound it yet: …", "free what the scheduler names, or delete the pod: a controller makes it again", ""},
	{OldTemplate, "it has an earlier template of StatefulSet/NAME …", "delete the pod: it is created from the present template", ""},
	{NodeNotReady, "it is on node NODE, pending; the node starts no container with a share now: …", "see to the node's agent: `kubectl -n vernier-system get pods -o wide`; the kubelet tries again", "#the-node-is-not-ready"},
	{NotStarted, "it is on node NODE, pending; the kubelet says of container C: …", "see to the image, the volume or the runtime that the message names", "#the-container-does-not-start"},
	{Failed, "it has failed on node NODE: container C ended with exit code 137: OOMKilled", "it is the container's own exit code: `kubectl logs` has its last lines", "#inside-the-container"},
	{Preempted, "it is evicted from node NODE: its slices go to pod NAME, which has a higher priority", "a controller makes it again; a PriorityClass above the other's keeps it", "concepts/priority.md"},

	{Quota, "ReplicaSet/NAME cannot create pods: … exceeded quota: …", "ask for less, end another pod of the namespace, or ask who has set the quota; `kubectl vernier` has what is left", ""},
	{Refused, "ReplicaSet/NAME cannot create pods: … denied the request: …", "change the template as the message says", "#the-pod-is-refused-when-i-create-it"},
}

// Known reports whether the cause is one of these: an event's may be anybody's word.
func (c Cause) Known() bool { return c.at() >= 0 }

// Remedy is what helps, empty where nobody knows the cause.
func (c Cause) Remedy() string {
	if at := c.at(); at >= 0 {
		return Docs[at].Remedy
	}
	return ""
}

func (c Cause) at() int { return slices.IndexFunc(Docs, func(d Doc) bool { return d.Cause == c }) }
