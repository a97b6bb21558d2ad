// SPDX-License-Identifier: Apache-2.0

package podgroup

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/podrequest"
)

// Resources are the PodGroups that Sizes knows, to be watched. Changed is called when a group says
// something else than before, and allChanged when all groups of an API may.
func (s *Sizes) Resources(changed func(podrequest.Group), allChanged func(podrequest.GroupAPI)) (all []served.Resource) {
	for _, api := range apis {
		all = append(all, served.Resource{
			Group: string(api), Name: "podgroups",
			Trim: func(u *unstructured.Unstructured) (metav1.Object, error) { return trim(api, u), nil },
			Put:  func(g metav1.Object) { changed(s.put(api, g.(*podGroup))) },
			Drop: func(g metav1.Object) {
				n := nameOf(api, g)
				s.drop(n)
				changed(n)
			},
			State: func(now served.State) {
				if s.set(api, now) {
					allChanged(api)
				}
			},
		})
	}
	return all
}

// podGroup is what the cache keeps of one. Whoever may write it, and a CRD without a schema, may
// have put a MiB of anything into it.
type podGroup struct {
	metav1.ObjectMeta
	size size
}

// trim leaves the name of a group, and what it says.
func trim(api podrequest.GroupAPI, u *unstructured.Unstructured) *podGroup {
	return &podGroup{
		metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()},
		read(nameOf(api, u), u),
	}
}

func nameOf(api podrequest.GroupAPI, obj metav1.Object) podrequest.Group {
	return podrequest.Group{API: api, Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
