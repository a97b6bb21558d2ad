// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// Translation is what became of a pod. The zero value is that of a pod in no
// dialect: nothing.
type Translation struct {
	// Dialect that the pod was written in.
	Dialect string
	// Annotations to set on it.
	Annotations map[string]string
	// Patch is everything else that changes.
	Patch    []jsonpatch.Operation
	Warnings []string
	Errors   field.ErrorList
}

// Translate rewrites the pod, annotations included, if it asks in one of the
// dialects. The pod that it leaves behind asks in none, so a second round of
// admission finds nothing to translate.
func (s Set) Translate(pod *slim.Pod) Translation {
	d := s.of(pod)
	if d == nil {
		return Translation{}
	}
	words := d.Words()
	t := translator{dialect: d, reading: Reading{Pod: pod, asksBy: asksBy(d, pod), set: map[string]string{}}}
	t.reading.amounts()
	d.Pod(&t.reading)
	for c := range pod.All() {
		t.container(c)
	}
	t.leftovers(words)
	s.strangers(&t.reading, words.Name)
	t.scheduler(words)
	annotations := map[string]string{}
	maps.Copy(annotations, pod.Metadata.Annotations)
	maps.Copy(annotations, t.reading.set)
	pod.Metadata.Annotations = annotations
	// Not on the pod as it is reviewed: there it would be the user's.
	t.reading.set[api.AnnotationDialect] = cmp.Or(words.Mark, words.Name)
	return Translation{Dialect: words.Name, Annotations: t.reading.set, Patch: t.patch,
		Warnings: t.reading.warnings, Errors: t.reading.errs}
}

type translator struct {
	dialect Dialect
	reading Reading
	patch   []jsonpatch.Operation
}

func (t *translator) container(c slim.Ref) {
	if !asksIn(t.dialect, t.reading.Pod, c.Container) {
		return
	}
	if podrequest.Asks(c.Resources) {
		t.reading.refuse(field.Forbidden(c.Path().Child("resources"), fmt.Sprintf(
			"asks for %s resources and in the dialect %s as well: keep the one or the other", api.Group, t.dialect.Words().Name)))
		return
	}
	before := len(t.reading.errs)
	share := t.dialect.Share(&t.reading, &Asking{c, &t.reading})
	if len(t.reading.errs) > before {
		// What has been refused once is not to be refused again.
		share = api.Share{}
	}
	t.rewrite(c, limits(share))
}

// limits are the totals by which a container asks for a share.
func limits(share api.Share) corev1.ResourceList {
	list := corev1.ResourceList{}
	set := func(name corev1.ResourceName, each int64) {
		if each > 0 {
			list[name] = *resource.NewQuantity(each*int64(share.GPUs), resource.DecimalSI)
		}
	}
	set(api.ResourceCore, int64(share.Core))
	set(api.ResourceMemPercent, int64(share.MemPercent))
	set(api.ResourceMemMiB, int64(share.MemMiB))
	if share.GPUs > 1 {
		set(api.ResourceGPUs, 1)
	}
	return list
}

// rewrite puts the totals into a container's limits and requests, as Kubernetes
// itself does with limits, and takes out what they say in the dialect.
func (t *translator) rewrite(c slim.Ref, add corev1.ResourceList) {
	r, path := &c.Resources, c.Pointer()+"/resources"
	if r.Limits == nil && r.Requests == nil && r.Claims == nil {
		// There may be no resources at all to patch.
		t.patch = append(t.patch, jsonpatch.NewOperation("add", path, map[string]any{"limits": add, "requests": add}))
		r.Limits, r.Requests = maps.Clone(add), maps.Clone(add)
		return
	}
	r.Limits = t.list(path+"/limits", r.Limits, add)
	r.Requests = t.list(path+"/requests", r.Requests, add)
}

func (t *translator) list(path string, have, add corev1.ResourceList) corev1.ResourceList {
	if have == nil {
		t.patch = append(t.patch, jsonpatch.NewOperation("add", path, add))
		return maps.Clone(add)
	}
	for _, name := range t.dialect.Words().Resources {
		if _, set := have[name]; set {
			t.patch = append(t.patch, jsonpatch.NewOperation("remove", path+"/"+slim.Pointer(string(name)), nil))
			delete(have, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(add)) {
		t.patch = append(t.patch, jsonpatch.NewOperation("add", path+"/"+slim.Pointer(string(name)), add[name]))
		have[name] = add[name]
	}
	return have
}

// scheduler replaces the other system's, which would leave the pod alone or bind
// it without regard to its place.
func (t *translator) scheduler(words Words) {
	name := t.reading.Pod.Spec.SchedulerName
	if !slices.Contains(words.Schedulers, name) {
		return
	}
	t.reading.warn(specPath.Child("schedulerName"),
		"%s is replaced by %s: Vernier chooses the GPUs, and the cluster's own scheduler binds the pod. Other pods of the job that ask for no GPU keep it", name, corev1.DefaultSchedulerName)
	t.patch = append(t.patch, jsonpatch.NewOperation("replace", "/spec/schedulerName", corev1.DefaultSchedulerName))
	t.reading.Pod.Spec.SchedulerName = corev1.DefaultSchedulerName
}

// leftovers warns of resources of the other system that nobody here reads, misspelt
// ones among them: they stay in the pod, and hold it until a node has them.
func (t *translator) leftovers(words Words) {
	var domains []string
	for _, name := range words.Resources {
		domain, _, _ := strings.Cut(string(name), "/")
		domains = append(domains, domain)
	}
	for c := range t.reading.Pod.All() {
		at := &Asking{c, &t.reading}
		names := slices.Collect(maps.Keys(c.Resources.Limits))
		names = slices.AppendSeq(names, maps.Keys(c.Resources.Requests))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			domain, _, _ := strings.Cut(string(name), "/")
			if slices.Contains(domains, domain) && !slices.Contains(words.Resources, name) && asksAny(c.Resources, name) {
				at.warn(name, "not translated: it stays in the pod, which waits for a node that has it: for a renamed resource the operator sets dialects.renamed (--renamed-resource)")
			}
		}
	}
}

// strangers refuses what a pod that was read in one dialect asks for in another.
func (s Set) strangers(r *Reading, name string) {
	for _, d := range s {
		words := d.Words()
		if words.Name == name || len(r.errs) > 0 {
			continue
		}
		for c := range r.Pod.All() {
			if asksAny(c.Resources, words.Resources...) {
				r.refuse(field.Forbidden(c.Path().Child("resources"), fmt.Sprintf(
					"asks in the dialect %s, and the pod is written in %s: ask in one of them", words.Name, name)))
			}
		}
	}
}
