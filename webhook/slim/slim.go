// SPDX-License-Identifier: Apache-2.0

// Package slim owns the webhook's view of a pod: the few fields that it reads.
// Decoding them costs less than decoding all of corev1.Pod.
//
// It never writes a pod: what is not in this view could not be written back. A
// change is a JSON patch.
package slim

import (
	"fmt"
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Pod is the part of a corev1.Pod that admission looks at. Field names are those
// of corev1.
type Pod struct {
	// Metadata is nil where the object has none: then it is no pod.
	Metadata *Metadata `json:"metadata"`
	Spec     Spec      `json:"spec"`
}

// Ref is a container, and where it stands in its pod: List is a field of the spec.
type Ref struct {
	*Container
	List  string
	Index int
}

// Init reports whether the container runs before those that do not.
func (r Ref) Init() bool { return r.List == "initContainers" }

// Path of the container in its pod, and Pointer, the same as a JSON pointer.
func (r Ref) Path() *field.Path { return field.NewPath("spec", r.List).Index(r.Index) }
func (r Ref) Pointer() string   { return fmt.Sprintf("/spec/%s/%d", r.List, r.Index) }

// All are the containers of the pod, init containers first.
func (p *Pod) All() iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		for i := range p.Spec.InitContainers {
			if !yield(Ref{&p.Spec.InitContainers[i], "initContainers", i}) {
				return
			}
		}
		for i := range p.Spec.Containers {
			if !yield(Ref{&p.Spec.Containers[i], "containers", i}) {
				return
			}
		}
	}
}

// Any reports whether it is so of a container of the pod.
func (p *Pod) Any(is func(c *Container) bool) bool {
	for c := range p.All() {
		if is(c.Container) {
			return true
		}
	}
	return false
}

// Workload is the part of what makes pods of a template that admission looks at.
type Workload struct {
	Metadata Annotated `json:"metadata"`
	Spec     struct {
		// Template is nil in a CronJob, whose jobs have it.
		Template    *Pod `json:"template"`
		JobTemplate struct {
			Metadata Annotated `json:"metadata"`
			Spec     struct {
				Template *Pod `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

// Annotated is the part of a workload's metadata that is read.
type Annotated struct {
	Annotations map[string]string `json:"annotations"`
}

// Metadata is the part of the object's metadata that is read.
type Metadata struct {
	Name         string            `json:"name"`
	GenerateName string            `json:"generateName"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	// OwnerReferences say what made the pod.
	OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
}

// Spec is the part of a corev1.PodSpec that is read.
type Spec struct {
	NodeName        string                      `json:"nodeName"`
	SchedulerName   string                      `json:"schedulerName"`
	HostPID         bool                        `json:"hostPID"`
	HostIPC         bool                        `json:"hostIPC"`
	Resources       corev1.ResourceRequirements `json:"resources"`
	Containers      []Container                 `json:"containers"`
	InitContainers  []Container                 `json:"initContainers"`
	Volumes         []Volume                    `json:"volumes"`
	SchedulingGates []corev1.PodSchedulingGate  `json:"schedulingGates"`
	// Where the pod goes: only how much is said of it is read.
	NodeSelector              map[string]string                 `json:"nodeSelector"`
	Affinity                  *corev1.Affinity                  `json:"affinity"`
	Tolerations               []corev1.Toleration               `json:"tolerations"`
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints"`
}

// Container is the part of a corev1.Container that is read.
type Container struct {
	Name            string                      `json:"name"`
	RestartPolicy   string                      `json:"restartPolicy"`
	Resources       corev1.ResourceRequirements `json:"resources"`
	Env             []Env                       `json:"env"`
	SecurityContext SecurityContext             `json:"securityContext"`
	VolumeMounts    []VolumeMount               `json:"volumeMounts"`
}

// VolumeMount is where a volume is in a container.
type VolumeMount struct {
	MountPath string `json:"mountPath"`
}

// Env is a variable. ValueFrom is not nil where its value comes from elsewhere.
type Env struct {
	Name      string    `json:"name"`
	Value     string    `json:"value"`
	ValueFrom *struct{} `json:"valueFrom"`
}

// SecurityContext is the part of a corev1.SecurityContext that is read.
type SecurityContext struct {
	Privileged   bool `json:"privileged"`
	Capabilities struct {
		Add []string `json:"add"`
	} `json:"capabilities"`
}

// Volume is the part of a corev1.Volume that is read.
type Volume struct {
	HostPath *struct {
		Path string `json:"path"`
	} `json:"hostPath"`
}

// Decode reads a pod as the API server sends it.
func Decode(raw []byte) (*Pod, error) { return decode[Pod](raw) }

// DecodeWorkload reads a workload as the API server sends it.
func DecodeWorkload(raw []byte) (*Workload, error) { return decode[Workload](raw) }

func decode[T any](raw []byte) (*T, error) {
	object := new(T)
	// The decoder that the API server itself uses: encoding/json alone would
	// match field names whatever their case.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, object); err != nil {
		return nil, err
	}
	return object, nil
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer escapes a key for the JSON pointers of a patch.
func Pointer(key string) string { return pointer.Replace(key) }
