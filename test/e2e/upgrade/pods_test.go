// SPDX-License-Identifier: Apache-2.0

//go:build upgrade

package upgrade

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
)

// load is a pod whose one container holds a slice, and what was seen of it.
type load struct {
	*corev1.Pod
	// core is its quota, busy whether it launches kernels all the time.
	core int64
	busy bool
	seen seen
}

// newPod holds 100 MiB of its slice.
func newPod(name, node string) *load {
	grace := int64(2)
	return &load{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &grace,
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers: []corev1.Container{{
				Name: "main", Image: system.DemoImage, ImagePullPolicy: corev1.PullNever,
				Command:   []string{"/bin/cudademo", "--alloc", "100", "--hold"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}},
			}},
		},
	}}
}

// burner always has kernels ready, for the shared GPU.
func burner(name string, core int64) *load { return newPod(name, shared).share(core, 10).burns(1) }

// holder has none.
func holder(name string, core int64) *load { return newPod(name, shared).share(core, 10) }

// share is in percent; 0 leaves one out.
func (l *load) share(core, mem int64) *load {
	l.limit(v1alpha1.ResourceMemPercent, mem)
	l.core = core
	return l.limit(v1alpha1.ResourceCore, core)
}

func (l *load) limit(name corev1.ResourceName, n int64) *load {
	if n > 0 {
		l.Spec.Containers[0].Resources.Limits[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return l
}

// burns launches kernels of so many milliseconds, an hour long.
func (l *load) burns(ms int) *load {
	l.busy = true
	l.Spec.Containers[0].Command = []string{"/bin/cudademo", "--alloc", "100", "--burn", "3600000", "--kernel-us", strconv.Itoa(1000 * ms)}
	return l
}
