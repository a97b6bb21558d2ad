// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What of the labs is about the devices of another driver, which pods have by resource
// claims: of a class that stands for an extended resource, too.

const (
	// cardDriver offers cards, cardClass is their class.
	cardDriver, cardClass = "card.example.com", "card"
	// cards are asked for as an extended resource by the name that the class gives, or by
	// the class's own.
	cards, cardsOfClass corev1.ResourceName = "example.com/card", corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix + cardClass)
)

// sharedCards are claims that several pods of a lab use.
var sharedCards = []string{"cards-0", "cards-1"}

func newCardClass() *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: cardClass}, Spec: resourcev1.DeviceClassSpec{
		ExtendedResourceName: ptr.To(string(cards)), Selectors: cel(`device.driver == "` + cardDriver + `"`)}}
}

func cel(expression string) []resourcev1.DeviceSelector {
	return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
}

// offerCards has most nodes have some cards, and a zone some that its nodes share.
func (l *lab) offerCards() {
	offer := func(pool string, reach func(*resourcev1.ResourceSliceSpec)) {
		s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: resourcev1.ResourceSliceSpec{
			Driver: cardDriver, Pool: resourcev1.ResourcePool{Name: pool, ResourceSliceCount: 1}}}
		reach(&s.Spec)
		for _, name := range []string{"card0", "card1", "card2"}[l.Intn(3):] {
			d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"speed": {IntValue: ptr.To(int64(1 + l.Intn(2)))}}}
			if l.chance(20) {
				d.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
			}
			s.Spec.Devices = append(s.Spec.Devices, d)
		}
		l.must(l.Create(l.Context(), s))
	}
	for _, node := range l.nodes {
		if l.chance(60) {
			offer(node, func(s *resourcev1.ResourceSliceSpec) { s.NodeName = &node })
		}
	}
	zone := corev1.NodeSelectorRequirement{Key: l.zone(), Operator: corev1.NodeSelectorOpIn, Values: []string{l.someZone()}}
	offer(l.name, func(s *resourcev1.ResourceSliceSpec) {
		s.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}}}
	})
	for _, name := range sharedCards {
		l.claimCards(name)
	}
}

// claimCards makes a claim for one or two cards.
func (l *lab) claimCards(name string) {
	exactly := resourcev1.ExactDeviceRequest{DeviceClassName: cardClass, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(1 + l.Intn(2))}
	if l.chance(40) {
		exactly.Selectors = cel(`device.attributes["` + cardDriver + `"].speed == 2`)
	}
	if l.chance(20) {
		exactly.Tolerations = []resourcev1.DeviceToleration{{Operator: resourcev1.DeviceTolerationOpExists}}
	}
	r := resourcev1.DeviceRequest{Name: "r", Exactly: &exactly}
	if l.chance(25) {
		either := func(name string, count int64) resourcev1.DeviceSubRequest {
			return resourcev1.DeviceSubRequest{Name: name, DeviceClassName: cardClass, AllocationMode: exactly.AllocationMode, Count: count,
				Selectors: exactly.Selectors, Tolerations: exactly.Tolerations}
		}
		r = resourcev1.DeviceRequest{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{either("two", 2), either("one", 1)}}
	}
	l.must(l.Create(l.Context(), &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: l.name, Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}}}}))
}

func (l *lab) wantCards(p *corev1.Pod) {
	first := &p.Spec.Containers[0].Resources
	if l.chance(40) {
		first.Limits = maps.Clone(first.Limits)
		name, some := oneOf(l, cards, cardsOfClass), *resource.NewQuantity(int64(1+l.Intn(2)), resource.DecimalSI)
		first.Limits[name], first.Requests[name] = some, some
		return
	}
	claim := oneOf(l, append(sharedCards, p.Name)...)
	if claim == p.Name {
		l.claimCards(claim)
	}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "cards", ResourceClaimName: &claim}}
	first.Claims = []corev1.ResourceClaim{{Name: "cards"}}
}

// freeCards does what the controller of resource claims does when a pod has gone.
func (l *lab) freeCards(of types.UID) {
	l.Helper()
	for {
		err := l.freeCardsOnce(of)
		if err == nil {
			return
		}
		// The scheduler writes the claims too.
		if !apierrors.IsConflict(err) {
			l.Fatal(err)
		}
	}
}

func (l *lab) freeCardsOnce(of types.UID) error {
	ctx, claims := l.Context(), &resourcev1.ResourceClaimList{}
	if err := l.List(ctx, claims, client.InNamespace(l.name)); err != nil {
		return err
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		owned := metav1.GetControllerOf(c) != nil || len(c.OwnerReferences) > 0 && c.OwnerReferences[0].UID == of
		free := slices.DeleteFunc(slices.Clone(c.Status.ReservedFor), func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == of })
		if len(free) == len(c.Status.ReservedFor) {
			continue
		}
		if len(free) == 0 {
			// First, so that the claim is found again if another write comes in between.
			c.Finalizers = nil
			if err := l.Update(ctx, c); err != nil {
				return err
			}
			c.Status.Allocation = nil
		}
		c.Status.ReservedFor = free
		if err := l.Status().Update(ctx, c); err != nil {
			return err
		}
		if owned {
			if err := l.Delete(ctx, c); err != nil {
				return err
			}
		}
	}
	return nil
}
