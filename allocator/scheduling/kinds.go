// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// MaxKinds bounds how many kinds of members a gang may have that is to start together. With
// each there are more orders to try, and each two of them are compared. Real
// ones have two or three.
const MaxKinds = 64

// kinds are the members of a gang by kind. Members of one kind ask for the same,
// select the same pods and are selected alike, as far as the gang's own selectors tell.
type kinds struct {
	of []int // by position in the gang
	// example is one pod of each kind, terms are those of the kind on others.
	example []*corev1.Pod
	terms   []feasible.PodTerms
}

// kindsOf sorts the pods by kind.
func kindsOf(pods []Request) *kinds {
	// Which labels are looked at the members' selectors say, and these are few.
	specs, terms, keys := make([]string, len(pods)), map[string]feasible.PodTerms{}, []string{}
	for i, p := range pods {
		specs[i] = podrequest.EquivalenceClass(p.Pod) + "\x00" + termsOf(p.Pod)
		if _, known := terms[specs[i]]; !known {
			terms[specs[i]] = feasible.PodTermsOf(p.Pod)
			keys = append(keys, terms[specs[i]].LabelKeys()...)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	k, numbers := &kinds{of: make([]int, len(pods))}, map[string]int{}
	for i, p := range pods {
		kind := specs[i]
		for _, key := range keys {
			value, has := p.Pod.Labels[key]
			kind += fmt.Sprintf("\x00%v%s", has, value)
		}
		n, known := numbers[kind]
		if !known {
			n = len(k.example)
			numbers[kind] = n
			k.example, k.terms = append(k.example, p.Pod), append(k.terms, terms[specs[i]])
		}
		k.of[i] = n
	}
	return k
}

// termsOf is in text what the pod Requests of nodes and of other pods, without what it has to
// itself, as its claims.
func termsOf(pod *corev1.Pod) string {
	// Errors are of writers that are full.
	part := corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations,
		TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, Resources: pod.Spec.Resources, Priority: pod.Spec.Priority}
	text, _ := part.Marshal()
	var b strings.Builder
	b.Write(text)
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			requests, _ := (&corev1.ResourceRequirements{Requests: list[i].Resources.Requests}).Marshal()
			b.Write(requests)
		}
	}
	return b.String()
}

// CheckMembers reports, as an error that names the remedy, that the members are of more kinds
// than those of a gang may be. The least is the field that says how many start together.
func CheckMembers(members []Request, least string) error {
	if len(members) <= MaxKinds {
		return nil
	}
	if n := len(kindsOf(members).example); n > MaxKinds {
		return fmt.Errorf("%d pods that start together are of %d kinds, at most %d are placed together. Make %s, requests, nodeSelector, affinity, topologySpreadConstraints and tolerations of more of them alike, or lower %s",
			len(members), n, MaxKinds, v1alpha1.AnnotationShares, least)
	}
	return nil
}
