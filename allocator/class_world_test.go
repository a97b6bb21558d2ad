// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"hash/fnv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Classes in a world: gold of one model, silver of the other.

var worldClasses = []v1alpha1.GPUClass{
	{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: v1alpha1.GPUClassSpec{Models: []string{"NVIDIA A100"}, Unit: v1alpha1.GPUUnit{Core: 25, MemMiB: 100}}},
	{ObjectMeta: metav1.ObjectMeta{Name: "silver"}, Spec: v1alpha1.GPUClassSpec{Models: []string{"T4", "L4"}, Unit: v1alpha1.GPUUnit{Core: 10}}},
}

// advertiseUnits has the node say that it has units of both, as many as the devices that it may
// come to have; the ledger decides.
func advertiseUnits(node *corev1.Node) {
	for i := range worldClasses {
		node.Status.Allocatable[v1alpha1.ClassResource(worldClasses[i].Name)] = resource.MustParse("100")
	}
}

// modelOf is the model of a device.
func (w *world) modelOf(uuid string) string {
	h := fnv.New32a()
	if h.Write([]byte(uuid)); w.classes == nil || h.Sum32()%2 == 0 {
		return "T4"
	}
	return "NVIDIA A100-SXM4-80GB"
}

// classed has some containers of the pod ask for units of a class, as admission leaves them.
func (w *world) classed(p *corev1.Pod) *corev1.Pod {
	if w.classes == nil {
		return p
	}
	shares, err := v1alpha1.ParseShares(p.Annotations[v1alpha1.AnnotationShares])
	w.must(err)
	for i := range p.Spec.Containers {
		c, class := &p.Spec.Containers[i], worldClasses[w.rand.Intn(2)]
		n := int64(1 + w.rand.Intn(3))
		if w.rand.Intn(10) == 0 {
			n = int64(100/class.Spec.Unit.Core) * int64(1+w.made%2) // the others may have to be on one GPU
		}
		if w.rand.Intn(4) == 0 {
			continue
		}
		share, err := class.Spec.Unit.Share(n)
		w.must(err)
		shares.Containers[c.Name] = share
		c.Resources = objects.RequestOf(share)
		c.Resources.Requests[v1alpha1.ClassResource(class.Name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	p.Annotations[v1alpha1.AnnotationShares], err = shares.Encode()
	w.must(err)
	return p
}

// checkClass asserts that the container's device is of its class.
func (w *world) checkClass(c container, uuid string) {
	class := w.classOf(c)
	if class == nil {
		return
	}
	if w.placedOf[class.Name]++; !class.Models.Allows(w.modelOf(uuid)) {
		w.fail("container %s of pod %s asks for GPUClass %s and is granted a part of %s, which is a %s", c.name, c.pod, class.Name, uuid, w.modelOf(uuid))
	}
}

// inClass reports whether the container may be on the device by its class, if it has one.
func (w *world) inClass(c container, uuid string) bool {
	class := w.classOf(c)
	return class == nil || class.Models.Allows(w.modelOf(uuid))
}

// classOf is the class that the container asks for units of, whether it exists now or not; nil
// without one.
func (w *world) classOf(c container) *classes.Class {
	p := w.find(c.pod)
	if w.classes == nil || p == nil {
		return nil
	}
	for _, of := range podrequest.Of(p).Containers {
		if of.Name == c.name {
			return classes.Of(worldClasses...).Get(of.Class)
		}
	}
	return nil
}

// classesChanged makes or deletes a class.
func (w *world) classesChanged(make bool) {
	class := worldClasses[w.rand.Intn(2)]
	if make {
		w.classes.Put(&class)
	} else {
		w.classes.Delete(class.Name)
	}
	for _, r := range w.replicas {
		r.allocator.ClassesChanged()
	}
}

// 1,000 pods of classes and of none, in a world with every fault that there is in others, and
// with classes that come and go: no container is ever granted a device outside its class, and in
// the end none waits that fits.
func TestClassesSoak(t *testing.T) {
	t.Parallel()
	for _, seed := range seedsOr(1, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newClassed(t, int64(seed))
			w.runClasses(part(1000))
			for i := range worldClasses {
				if n := w.placedOf[worldClasses[i].Name]; n < part(100) {
					t.Errorf("%d devices were granted to containers of class %s: the test no longer shows anything", n, worldClasses[i].Name)
				}
			}
			t.Logf("%d pods, %v devices granted", w.made, w.placedOf)
		})
	}
}

func newClassed(t *testing.T, seed int64) *world {
	return newWorld(t, seed, 3, 2, classed(worldClasses...))
}

// classed has GPUClasses, and devices of two models.
func classed(known ...v1alpha1.GPUClass) func(*world) {
	return func(w *world) {
		w.classes, w.placedOf = classes.Of(known...), map[string]int{}
		for _, n := range w.nodes {
			n.report()
		}
	}
}

// runClasses lets a cluster live until so many pods were made, and come to rest now and then.
func (w *world) runClasses(pods int) {
	for w.made < pods {
		for range 300 {
			w.act()
			if w.rand.Intn(60) == 0 {
				w.classesChanged(w.rand.Intn(3) > 0)
			}
		}
		for i := range worldClasses {
			w.classes.Put(&worldClasses[i])
		}
		w.classesChanged(true)
		w.settle()
		w.checkRest()
		w.calm = false
	}
}
