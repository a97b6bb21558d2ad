// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// maxKinds bounds how many kinds of members a gang may have that is to start together: with
// each there are more orders to try, and who goes by whom is asked of each two of them. Real
// ones have two or three.
const maxKinds = 64

// kinds are the members of a gang by kind. Members of one kind ask for the same,
// select the same pods and are selected alike, as far as the gang's own selectors tell.
type kinds struct {
	of []int // by position in the gang
	// example is one pod of each kind, wishes is what those of the kind wish of others.
	example []*corev1.Pod
	wishes  []feasible.Company
}

// kindsOf sorts the pods by kind.
func kindsOf(pods []ask) *kinds {
	// Which labels are looked at the members' selectors say, and these are few.
	specs, companies, keys := make([]string, len(pods)), map[string]feasible.Company{}, []string{}
	for i, p := range pods {
		specs[i] = podrequest.EquivalenceClass(p.pod) + "\x00" + termsOf(p.pod)
		if _, known := companies[specs[i]]; !known {
			companies[specs[i]] = feasible.CompanyOf(p.pod)
			keys = append(keys, companies[specs[i]].LabelKeys()...)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	k, numbers := &kinds{of: make([]int, len(pods))}, map[string]int{}
	for i, p := range pods {
		kind := specs[i]
		for _, key := range keys {
			value, has := p.pod.Labels[key]
			kind += fmt.Sprintf("\x00%v%s", has, value)
		}
		n, known := numbers[kind]
		if !known {
			n = len(k.example)
			numbers[kind] = n
			k.example, k.wishes = append(k.example, p.pod), append(k.wishes, companies[specs[i]])
		}
		k.of[i] = n
	}
	return k
}

// termsOf is in text what the pod asks of nodes and of other pods, without what it has to
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

// checkMembers reports, as an error that names the remedy, that the members are of more kinds
// than those of a gang may be.
func checkMembers(g *gang, asks []ask) error {
	if len(asks) <= maxKinds {
		return nil
	}
	if n := len(kindsOf(asks).example); n > maxKinds {
		return fmt.Errorf("%s: %d pods that start together are of %d kinds, at most %d are placed together: make %s, requests, nodeSelector, affinity, topologySpreadConstraints and tolerations of more of them alike, or lower %s",
			g.name, len(asks), n, maxKinds, v1alpha1.AnnotationShares, g.name.API.Field())
	}
	return nil
}
