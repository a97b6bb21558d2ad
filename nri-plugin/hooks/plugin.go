// SPDX-License-Identifier: Apache-2.0

// Package hooks owns what happens between the container runtime and us. The NRI
// plugin gives a container its slices, confirms them, and sees containers
// come and go.
//
// It believes the ledger, never an annotation, and never grants, moves or gives
// back a slice. Others decide by the table that it keeps (package attach).
package hooks

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/numa"
	"vernier.dev/vernier/nri-plugin/rdma"
)

// fetchTimeout bounds the one read from the API server that a creation may cost. It
// leaves NVML its part of the time for the answer.
const fetchTimeout = time.Second

// Ledger is what has been granted on this node.
type Ledger interface {
	// Index is the latest version that the watch delivered.
	Index() *ledger.Index
	// Behind reports whether that may not show what was moved off an unhealthy device.
	Behind() bool
	// Fetch asks the API server.
	Fetch(context.Context) (*ledger.Index, error)
}

// Checker knows the node's devices.
type Checker interface {
	// Check confirms that a device can carry a slice now.
	Check(uuid string, mem v1alpha1.MiB) error
	// Snapshot is the latest picture of them.
	Snapshot() (device.Snapshot, bool)
}

// Reporter tells a pod's owner what went wrong. It must not block.
type Reporter interface {
	Warn(pod PodRef, reason, message string)
}

// PodRef names a pod in an event, and the container that it is about.
type PodRef struct {
	Namespace, Name string
	UID             types.UID
	Container       string
}

// Of is the pod's container of that name.
func (r PodRef) Of(container string) PodRef {
	r.Container = container
	return r
}

// Plugin handles the runtime's events. All exported fields are required, but
// AnswerWithin, BindCPUs, PodCPUs, Env, Started, IdleEnded, and Containers and Misaligned, which fill themselves.
type Plugin struct {
	Ledger  Ledger
	Devices Checker
	Modes   mode.Set
	Table   *attach.ContainerTable
	Batch   *batch.Keeper
	RDMA    rdma.Host
	Report  Reporter
	Log     logr.Logger
	// Kill ends the first process of a container that runs without its limits.
	Kill func(pid uint32, container string) error
	// AnswerWithin, if set, bounds an answer further than the time that the runtime waits.
	AnswerWithin time.Duration
	// Containers of the node, by id.
	Containers ContainerIndex
	// Sysfs is where the node's is mounted.
	Sysfs string
	// BindCPUs has containers that ask for one NUMA node held to the CPUs of their GPUs'.
	BindCPUs bool
	// PodCPUs, if set, are the CPUs of a pod's cgroup, by its sandbox. Its containers can be
	// held to no others then, as under cgroup v1.
	PodCPUs func(pid uint32, sandbox string) (cpuset.CPUSet, error)
	// Env, if set, are the names in a container's env that steer the GPU.
	Env func(PodRef) []string
	// Started, if set, gets at each start of a container which GPUs it has and what holds its share.
	// It must not block.
	Started func(of PodRef, what string)
	// IdleEnded, if set, reports whether the node ends the pod's idle slice, whatever the ledger says.
	IdleEnded func(pod types.UID) bool
	// Misaligned are the pods whose GPUs have to follow their CPUs.
	Misaligned numa.Misaligned

	// nodesErr is why the NUMA nodes could not be read last.
	nodesErr atomic.Pointer[string]
}

// isPrivileged reports whether the runtime lets the container use every device of
// the host. Nothing that is injected or withheld changes what such a container
// can reach, so it is the cluster administrator's to allow or not.
func isPrivileged(c *api.Container) bool {
	return slices.ContainsFunc(c.GetLinux().GetResources().GetDevices(), func(rule *api.LinuxDeviceCgroup) bool {
		return rule.GetAllow() && (rule.GetType() == "" || rule.GetType() == "a") && rule.GetMajor() == nil && rule.GetMinor() == nil
	})
}

func uid(pod *api.PodSandbox) types.UID { return types.UID(pod.GetUid()) }

func owner(pod *api.PodSandbox) string { return pod.GetNamespace() + "/" + pod.GetName() }

func ref(pod *api.PodSandbox) PodRef {
	return PodRef{Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: uid(pod)}
}

// annotationGrace is the kubelet's on each container: its pod's terminationGracePeriodSeconds.
const annotationGrace = "io.kubernetes.pod.terminationGracePeriod"

// maxGrace bounds how long slices may outlive their pod, whatever it says.
const maxGrace = time.Hour

// grace is the pod's own grace period, or maxGrace where that is longer or is not known.
func grace(c *api.Container) time.Duration {
	seconds, err := strconv.ParseUint(c.GetAnnotations()[annotationGrace], 10, 63)
	if err != nil || seconds > uint64(maxGrace.Seconds()) {
		return maxGrace
	}
	return time.Duration(seconds) * time.Second
}

// refusal is the text of a pod's event: what was refused, why, and (in the
// reason) what to do.
func refusal(pod *api.PodSandbox, c *api.Container, reason error) error {
	return fmt.Errorf("vernier: container %s of pod %s is not started: %w", c.GetName(), owner(pod), reason)
}

// runtimeWaits is how long the runtime waits for an answer where it does not say so. It
// holds every other container of the node for that time, and drops a plugin that is later. It
// would then start a container whose limits are not set yet (NRI before 0.12.5), or refuse
// it without a word on why.
const runtimeWaits = 2 * time.Second

// answering bounds what is done for one answer: three quarters of the time that the runtime
// waits, which comes with the request, for it is a setting of containerd.
func (p *Plugin) answering(ctx context.Context) (context.Context, context.CancelFunc) {
	waits := runtimeWaits
	if end, bounded := ctx.Deadline(); bounded {
		waits = time.Until(end)
	}
	limit := waits / 4 * 3
	if p.AnswerWithin > 0 {
		limit = min(limit, p.AnswerWithin)
	}
	return context.WithTimeout(ctx, limit)
}

// callWithDeadline does what may wait for the driver, and reports whether it was done before ctx
// ended. A call of the driver cannot be cancelled: one that hangs is left behind.
func callWithDeadline[T any](ctx context.Context, do func() T) (result T, done bool) {
	if ctx.Err() != nil {
		return result, false
	}
	answer := make(chan T, 1)
	go func() { answer <- do() }()
	select {
	case result = <-answer:
		return result, true
	case <-ctx.Done():
		return result, false
	}
}
