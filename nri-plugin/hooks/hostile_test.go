// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"os"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/nritest"
)

// A static pod has the UID that its manifest names, another's or a path: it gets no slice by
// it, and nothing is written where it points.
func TestHostileUIDs(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	granted := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(granted))
	before := tree(t, n.state)
	for name, change := range map[string]func(*api.PodSandbox){
		"another's, by another name":      func(p *api.PodSandbox) { p.Name = "b" },
		"another's, in another namespace": func(p *api.PodSandbox) { p.Namespace = "b" },
		"another's, with its shares":      func(p *api.PodSandbox) { p.Name, p.Annotations = "b", granted.Annotations },
	} {
		pod := podOf("a", "")
		pod.Id = "sandbox-" + name
		change(pod)
		c := containerOf(pod, "main")
		c.Id = "id-" + name
		_, err := r.Create(pod, c)
		if err == nil {
			t.Errorf("%s: it was not refused", name)
			continue
		}
		refusedFor(t, err, "team/a", "manifest")
	}
	for _, uid := range []string{"../lib", "../../../../tmp/x", "lib", ".", ""} {
		pod := podOf("p", "")
		pod.Uid = uid
		c := containerOf(pod, "main", v1alpha1.EnvSlice+"="+uid)
		got, err := r.Create(pod, c)
		if err != nil || len(got.GetMounts()) > 0 || len(cdiNames(got)) > 0 {
			t.Errorf("UID %q: %v, %v", uid, got, err)
		}
		pod.Annotations = podOf("p", share30).Annotations
		if _, err := r.Create(pod, c); err == nil {
			t.Errorf("UID %q with shares: it was not refused", uid)
		}
	}
	if now := tree(t, n.state); now != before {
		t.Errorf("files before: %s\nnow: %s", before, now)
	}
	if _, err := r.Create(granted, containerOf(granted, "main")); err != nil {
		t.Errorf("the pod whose slices they are: %v", err)
	}
}

// tree names what is below the folder and beside it.
func tree(t *testing.T, state string) (all string) {
	t.Helper()
	for _, dir := range []string{state, state + "/..", state + "/lib"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all += " " + dir + "/" + e.Name()
		}
	}
	return all
}

// The containerd of 2.2 and 2.3 restores an image that is a checkpoint without asking plugins
// at its start, so that no limit would be set there: with a slice it is refused. Annotations
// and devices come from the image then, and are looked at like others.
func TestHostileCheckpoint(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	restored := func(name string, more ...string) *api.Container {
		c := containerOf(pod, name)
		c.Annotations = map[string]string{"restored": "true", "checkpointedAt": "2026-01-01T00:00:00Z", "checkpointImage": "registry/checkpoint"}
		for i := 0; i < len(more); i += 2 {
			c.Annotations[more[i]] = more[i+1]
		}
		return c
	}
	_, err := r.Create(pod, restored("main"))
	refusedFor(t, err, "checkpoint", "start it from its image")
	_, err = r.Create(pod, restored("side", v1alpha1.AnnotationCDIPrefix+"x", "vernier.dev/gpu="+gpu0))
	refusedFor(t, err, v1alpha1.AnnotationCDIPrefix+"x")
	if got, err := r.Create(pod, restored("side")); err != nil || len(cdiNames(got)) > 0 {
		t.Errorf("without a slice: %v, %v", got, err)
	}
	if n.Table.Holds(uid(pod)) {
		t.Error("what was refused is in the table")
	}
}
