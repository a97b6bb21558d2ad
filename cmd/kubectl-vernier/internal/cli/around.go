// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/state/podstate"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/manifest"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// maxAround bounds how many controllers, claims and gangs of the pods are read, of each kind.
const maxAround = 50

// surveyor reads what stands around pods. What the user may not read it says, once for each
// kind, and leaves out.
type surveyor struct {
	*command
	r    client.Reader
	into *view.Evidence
	said map[string]bool
}

// around reads what else may keep the pods from starting: each only where one of them may wait
// for it.
func (c *command) around(ctx context.Context, r client.Reader, pods []corev1.Pod, into *view.Evidence) error {
	s := &surveyor{c, r, into, map[string]bool{}}
	into.Around = view.Around{Controllers: map[types.UID]client.Object{}, Claims: map[string]view.Claim{}, Least: map[podrequest.Group]int{}}
	all := slices.ContainsFunc(into.Verdicts, model.KeepsRoom)
	schedulers := map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		if name, is := podrequest.GroupOf(pod); is && len(into.Least) < maxAround {
			s.gang(name)
			all = true
		}
		if pod.Status.Phase == corev1.PodRunning || podstate.Terminal(pod) {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
			s.controller(ctx, owner)
			all = all || owner.Kind == "ReplicaSet"
		}
		if pod.Spec.NodeName != "" {
			continue
		}
		for _, name := range view.ClaimsOf(pod) {
			s.claim(ctx, name)
		}
		if name := cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName); view.Untouched(pod) && !schedulers[name] {
			schedulers[name] = true
			said, err := c.events(ctx, c.ns, fields.Set{eventlist.FieldSource: name, eventlist.FieldKind: "Pod"}.AsSelector())
			if err != nil {
				return err
			}
			into.Schedulers = append(into.Schedulers, said...)
		}
	}
	var err error
	if all {
		if into.Pods, err = podsIn(ctx, r, c.ns); err != nil {
			return err
		}
	}
	if len(into.Claims) > 0 {
		into.Claiming, err = c.events(ctx, c.ns, fields.Set{eventlist.FieldKind: "PersistentVolumeClaim"}.AsSelector())
	}
	return err
}

// get reads an object, and reports whether there is one and whether the answer is known.
func (s *surveyor) get(ctx context.Context, ns, name string, into client.Object) (there, known bool) {
	err := s.r.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, into)
	return s.answer(fmt.Sprintf("%T", into), err)
}

func (s *surveyor) answer(kind string, err error) (there, known bool) {
	if err != nil && !apierrors.IsNotFound(err) {
		if !s.said[kind] {
			s.said[kind] = true
			fmt.Fprintf(whole(s.errOut), "left out: what else may keep it from starting: %v\n", err)
		}
		return false, false
	}
	return err == nil, true
}

// controller reads what makes a pod, where its rollouts matter.
func (s *surveyor) controller(ctx context.Context, owner *metav1.OwnerReference) {
	if _, known := s.into.Controllers[owner.UID]; known || len(s.into.Controllers) == maxAround {
		return
	}
	s.into.Controllers[owner.UID] = nil
	switch owner.Kind {
	case "StatefulSet":
		made := &appsv1.StatefulSet{}
		if there, _ := s.get(ctx, s.ns, owner.Name, made); there {
			s.into.Controllers[owner.UID] = made
		}
	case "ReplicaSet":
		set, made := &appsv1.ReplicaSet{}, &appsv1.Deployment{}
		if there, _ := s.get(ctx, s.ns, owner.Name, set); !there {
			return
		}
		if of := metav1.GetControllerOfNoCopy(set); of != nil && of.Kind == "Deployment" {
			if there, _ := s.get(ctx, s.ns, of.Name, made); there {
				s.into.Controllers[owner.UID] = made
			}
		}
	}
}

// claim reads a claim, and what it waits for unless its provisioner was asked already.
func (s *surveyor) claim(ctx context.Context, name string) {
	if _, known := s.into.Claims[name]; known || len(s.into.Claims) == maxAround {
		return
	}
	pvc, c := &corev1.PersistentVolumeClaim{}, view.Claim{}
	there, known := s.get(ctx, s.ns, name, pvc)
	if !known {
		return
	}
	if there {
		c.Object = pvc
		class := ptr.Deref(pvc.Spec.StorageClassName, "")
		switch {
		case pvc.Status.Phase == corev1.ClaimBound:
		case pvc.Spec.VolumeName != "":
			exists, known := s.get(ctx, "", pvc.Spec.VolumeName, &corev1.PersistentVolume{})
			c.NoVolume = known && !exists
		case class != "" && pvc.Annotations[storage.AnnStorageProvisioner] == "":
			of := &storagev1.StorageClass{}
			exists, known := s.get(ctx, "", class, of)
			if c.NoClass = known && !exists; exists {
				c.Class = of
			}
		}
	}
	s.into.Claims[name] = c
}

// gang reads how many pods of a gang start together; of Kueue's the pods themselves say it.
func (s *surveyor) gang(name podrequest.Group) {
	if _, known := s.into.Least[name]; known || name.API == podrequest.Kueue {
		return
	}
	s.into.Least[name] = 0
	infos, err := resource.NewBuilder(s.flags).Unstructured().NamespaceParam(s.ns).
		ResourceNames("podgroups."+string(name.API), name.Name).Do().Infos()
	if there, _ := s.answer("PodGroup", err); there && len(infos) == 1 {
		if object, ok := infos[0].Object.(*unstructured.Unstructured); ok {
			s.into.Least[name] = manifest.GroupOf(object.Object).Min
		}
	}
}
