// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/storage/ephemeral"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/podstate"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/webhook/dialect"
)

// Around is what stands around pods, as far as the user may read it.
type Around struct {
	// Pods of the namespace.
	Pods []corev1.Pod
	// Controllers that make pods, by the UID that these name: of a ReplicaSet, its Deployment.
	Controllers map[types.UID]client.Object
	// Claims of the pods that are not bound, by name.
	Claims map[string]Claim
	// Least is how many pods of each gang must start together.
	Least map[podrequest.Group]int
}

// Claim is a PersistentVolumeClaim, and what it waits for.
type Claim struct {
	// Object is nil where there is no such claim.
	Object *corev1.PersistentVolumeClaim
	// Class is nil where it was not read, and NoClass says that it does not exist.
	Class   *storagev1.StorageClass
	NoClass bool
	// NoVolume: the PersistentVolume that it names does not exist.
	NoVolume bool
}

// ClaimsOf are the names of a pod's PersistentVolumeClaims.
func ClaimsOf(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, ephemeral.VolumeClaimName(pod, v))
		}
	}
	return names
}

// hints say what around the pod keeps it from starting, and what helps. The first that is a cause of
// its own is named. fits: there is room.
func (e *Evidence) hints(pod *corev1.Pod, fits bool) (first cause.Cause, all []string) {
	add := func(of cause.Cause, text string) {
		if text != "" {
			all, first = append(all, text), cmp.Or(first, of)
		}
	}
	if pod.Spec.NodeName == "" && !started(pod) {
		for _, name := range ClaimsOf(pod) {
			if claim, read := e.Claims[name]; read {
				add(cause.ClaimUnbound, unboundClaim(pod, name, claim, e.claimEvents))
			}
		}
	}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && !started(pod) {
		switch made := e.Controllers[controller.UID].(type) {
		case *appsv1.StatefulSet:
			add(cause.OldTemplate, oldRevision(pod, made))
		case *appsv1.Deployment:
			if podstate.Gated(pod) && !fits {
				add(cause.Rollout, e.oldPods(pod, made))
			}
		}
	}
	if !podrequest.Marked(pod) && !started(pod) {
		if raw, err := json.Marshal(pod); err == nil {
			add("", Hint(dialect.Settings{}, raw))
		}
	}
	if text := e.gang(pod); podstate.Gated(pod) {
		add(cause.GangIncomplete, text)
	} else {
		add("", text)
	}
	return first, all
}

// unboundClaim says what a claim waits for; empty where it is bound, or waits for the pod.
func unboundClaim(pod *corev1.Pod, name string, c Claim, events map[model.Subject]string) string {
	is, claim := "PersistentVolumeClaim "+name, c.Object
	switch {
	case claim == nil:
		return is + " does not exist: create it"
	case claim.Status.Phase == corev1.ClaimBound:
		return ""
	case claim.Status.Phase == corev1.ClaimLost:
		return is + " has lost its PersistentVolume " + claim.Spec.VolumeName + ": create both again"
	case c.NoVolume:
		return is + " waits for PersistentVolume " + claim.Spec.VolumeName + ", which does not exist: create it"
	case claim.Spec.VolumeName != "":
		return is + " waits for PersistentVolume " + claim.Spec.VolumeName + " to be bound to it"
	}
	is += " is not bound: "
	class := ptr.Deref(claim.Spec.StorageClassName, "")
	if class == "" {
		return is + "it names no storage class, and no PersistentVolume is free for it"
	}
	if c.NoClass {
		return is + "its storage class " + class + " does not exist"
	}
	provisioner := cmp.Or(claim.Annotations[storage.AnnStorageProvisioner], claim.Annotations[storage.AnnBetaStorageProvisioner])
	said := events[model.AsSubject(claim)]
	waits := strings.HasPrefix(said, "WaitFor") // for the pod's node
	if c.Class != nil {
		provisioner = c.Class.Provisioner
		waits = ptr.Deref(c.Class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer && claim.Annotations[storage.AnnSelectedNode] == ""
	}
	text := is + "its storage class " + class + " has made no PersistentVolume"
	switch {
	case waits && !podstate.Unschedulable(pod):
		return ""
	case provisioner == storage.NotSupportedProvisioner:
		text = is + "its storage class " + class + " has no provisioner, and no PersistentVolume of that class is free for it"
	case provisioner != "":
		text = is + "provisioner " + provisioner + " of its storage class " + class + " has made no PersistentVolume"
	}
	if said != "" {
		text += "; its last event: " + said
	}
	return text
}

// oldRevision says that a StatefulSet does not give the pod its present template.
func oldRevision(pod *corev1.Pod, s *appsv1.StatefulSet) string {
	has, now := pod.Labels[appsv1.ControllerRevisionHashLabelKey], s.Status.UpdateRevision
	if has == "" || now == "" || has == now {
		return ""
	}
	text := fmt.Sprintf("it has an earlier template of StatefulSet/%s (%s, now %s), which ", s.Name, has, now)
	const remedy = ": delete the pod, and it is created from the present one"
	switch rolling := s.Spec.UpdateStrategy.RollingUpdate; {
	case s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType:
		return text + "replaces no pod itself (updateStrategy OnDelete)" + remedy
	case rolling != nil && rolling.Partition != nil && ordinal(pod) < *rolling.Partition:
		return "" // it is to keep it
	case s.Spec.PodManagementPolicy == appsv1.ParallelPodManagement:
		return "" // it is replaced
	default:
		return text + "replaces no pod before all are ready" + remedy
	}
}

func ordinal(pod *corev1.Pod) int32 {
	n, _ := strconv.ParseInt(pod.Labels[appsv1.PodIndexLabel], 10, 32) // it is the controller's own
	return int32(n)
}

// oldPods says that a rollout waits for room which the Deployment's own old pods have until a
// new one is ready.
func (e *Evidence) oldPods(pod *corev1.Pod, d *appsv1.Deployment) string {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return ""
	}
	of := metav1.GetControllerOfNoCopy(pod).UID
	old := 0
	for i := range e.Pods {
		p := &e.Pods[i]
		if c := metav1.GetControllerOfNoCopy(p); c != nil && c.UID != of && selector.Matches(labels.Set(p.Labels)) &&
			p.DeletionTimestamp == nil && !podstate.Terminal(p) && podrequest.Placed(p) {
			old++
		}
	}
	replicas, most := ptr.Deref(d.Spec.Replicas, 1), maxUnavailable(d)
	if old == 0 || d.Status.AvailableReplicas > replicas-most {
		return "" // else the controller ends more of them
	}
	return fmt.Sprintf(`%s of an earlier template of Deployment/%s have slices until a new one is ready, as its maxUnavailable amounts to %d. `+
		"`kubectl -n %s patch deployment %s -p '"+`{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":%d}}}}`+"'` ends one of them first",
		countedPods(old), d.Name, most, d.Namespace, d.Name, most+1)
}

// maxUnavailable is it in pods, as the controller counts.
func maxUnavailable(d *appsv1.Deployment) int32 {
	rolling := d.Spec.Strategy.RollingUpdate
	if rolling == nil {
		rolling = &appsv1.RollingUpdateDeployment{}
	}
	standard := intstr.FromString("25%")
	replicas := int(ptr.Deref(d.Spec.Replicas, 1))
	surge, err := intstr.GetScaledValueFromIntOrPercent(cmp.Or(rolling.MaxSurge, &standard), replicas, true)
	most, alsoErr := intstr.GetScaledValueFromIntOrPercent(cmp.Or(rolling.MaxUnavailable, &standard), replicas, false)
	if err == nil && alsoErr == nil && surge == 0 && most == 0 {
		return 1
	}
	return int32(most)
}

// gang says that the pod's gang is not complete yet, or has started and lost members since.
func (e *Evidence) gang(pod *corev1.Pod) string {
	name, is := podrequest.GroupOf(pod)
	if !is {
		return ""
	}
	if e.groups == nil {
		e.groups = gang.New(&podgroup.Sizes{})
		for i := range e.Pods {
			e.groups.Update(&e.Pods[i])
		}
	}
	g := e.groups.Gang(name)
	least := cmp.Or(e.Least[name], g.Least)
	switch {
	case g.In >= least:
		return ""
	case g.In == 0 && len(g.Members) < least:
		all := *g
		all.Least = least
		return all.Incomplete()
	case g.In == 0:
		return ""
	}
	text := fmt.Sprintf("%s has fallen below its minimum: %d of the %d pods that start together (%s) are left", name, g.In, least, name.API.Field())
	if waiting := len(g.Members) - g.In; waiting > 0 {
		text += fmt.Sprintf(", %d wait", waiting)
	}
	if missing := least - len(g.Members); missing > 0 {
		text += fmt.Sprintf("; create %d more", missing)
	}
	return text
}

// bindsVolumes reports whether a scheduler waits for a volume of the pod to be made.
func (e *Evidence) bindsVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(ClaimsOf(pod), func(name string) bool {
		claim := e.Claims[name].Object
		return claim != nil && claim.Annotations[storage.AnnSelectedNode] != ""
	})
}
