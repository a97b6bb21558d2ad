// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
)

// pod builds a pod; every method returns it, so that a test reads as one phrase.
type pod struct{ corev1.Pod }

// newPod has one container, "main", that runs the CUDA demo and stays.
func newPod(name string) *pod {
	p := &pod{}
	p.Name, p.Namespace = name, namespace
	p.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		DNSPolicy:     corev1.DNSDefault,
		Containers:    []corev1.Container{container("main", "--hold")},
		// The demo ends at once on SIGTERM; a test that deletes need not wait.
		TerminationGracePeriodSeconds: ptr(int64(2)),
	}
	return p
}

func container(name string, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: system.DemoImage, ImagePullPolicy: corev1.PullNever,
		Command: append([]string{"/bin/cudademo"}, args...),
	}
}

// bystander is a container that asks for no share, says what it sees, and stays: its
// pod is ready for no longer than all of its containers run.
func bystander(name string) corev1.Container {
	c := container(name)
	c.Command = []string{"/bin/sh", "-c", "/bin/cudademo; exec sleep 1000"}
	return c
}

func (p *pod) main() *corev1.Container { return &p.Spec.Containers[0] }

// share sets core and memory percent of the main container; 0 leaves one out.
func (p *pod) share(core, mem int64) *pod {
	p.main().Resources = shareOf(core, mem)
	return p
}

func shareOf(core, mem int64) corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	if core > 0 {
		limits[v1alpha1.ResourceCore] = *resource.NewQuantity(core, resource.DecimalSI)
	}
	if mem > 0 {
		limits[v1alpha1.ResourceMemPercent] = *resource.NewQuantity(mem, resource.DecimalSI)
	}
	return corev1.ResourceRequirements{Limits: limits}
}

func (p *pod) limit(name corev1.ResourceName, n int64) *pod {
	if p.main().Resources.Limits == nil {
		p.main().Resources.Limits = corev1.ResourceList{}
	}
	p.main().Resources.Limits[name] = *resource.NewQuantity(n, resource.DecimalSI)
	return p
}

func (p *pod) args(args ...string) *pod {
	p.main().Command = append([]string{"/bin/cudademo"}, args...)
	return p
}

func (p *pod) command(argv ...string) *pod {
	p.main().Command = argv
	return p
}

func (p *pod) env(name, value string) *pod {
	p.main().Env = append(p.main().Env, corev1.EnvVar{Name: name, Value: value})
	return p
}

func (p *pod) annotate(key, value string) *pod {
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
	return p
}

func (p *pod) in(namespace string) *pod {
	p.Namespace = namespace
	return p
}

// on keeps the pod to one node, by an affinity of its own that the pin must keep.
func (p *pod) on(node string) *pod {
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	return p
}

func (p *pod) also(c ...corev1.Container) *pod {
	p.Spec.Containers = append(p.Spec.Containers, c...)
	return p
}

func (p *pod) init(c ...corev1.Container) *pod {
	p.Spec.InitContainers = append(p.Spec.InitContainers, c...)
	return p
}

func ptr[T any](v T) *T { return &v }
