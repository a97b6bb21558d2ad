// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/nri-plugin/nritest"
)

// The roster has what runs, with slices or without: what the runtime lists when we
// come, what it starts, and nothing that has ended, however that is told.
func TestRoster(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	a, b := podOf("a", ""), podOf("b", "")
	listed, stopped := running(containerOf(a, "listed")), containerOf(a, "stopped")
	stopped.State = api.ContainerState_CONTAINER_STOPPED
	r.Lists([]*api.PodSandbox{a}, []*api.Container{listed, stopped})
	link := connect(t, r, n.Plugin)
	has := func(when string, want map[*api.Container]bool) {
		t.Helper()
		for c, there := range want {
			h, found := n.Roster.Find(c.Id)
			if found != there || found && (h.Name != c.Name || h.ID != c.Id || h.Pod.Namespace != "team" || h.Pod.Name == "") {
				t.Errorf("%s: container %s: %+v, %t; want %t", when, c.Name, h, found, there)
			}
		}
	}
	has("listed", map[*api.Container]bool{listed: true, stopped: false})

	first, second := containerOf(b, "first"), containerOf(b, "second")
	for _, c := range []*api.Container{first, second} {
		if err := r.StartContainer(b, c); err != nil {
			t.Fatal(err)
		}
	}
	has("started", map[*api.Container]bool{first: true, second: true})
	r.StopContainer(t, b, first)
	has("stopped", map[*api.Container]bool{first: false, second: true, listed: true})
	if err := r.Adaptation.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: b}); err != nil {
		t.Fatal(err)
	}
	has("sandbox stopped", map[*api.Container]bool{second: false, listed: true})

	// What ended unseen is gone with the next list.
	link.disconnect()
	r.Lists(nil, nil)
	connect(t, r, n.Plugin)
	has("listed again", map[*api.Container]bool{listed: false})
}
