// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// The index has what runs, with slices or without: what the runtime lists when we
// come, what it starts, and nothing that has ended, however that is told.
func TestContainerIndex(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	a, b := podOf("a", ""), podOf("b", "")
	listed, stopped := running(containerOf(a, "listed")), containerOf(a, "stopped")
	stopped.State = api.ContainerState_CONTAINER_STOPPED
	r.Lists([]*api.PodSandbox{a}, []*api.Container{listed, stopped})
	link := connect(t, r, n.Plugin)
	has := func(when string, want map[*api.Container]bool) {
		t.Helper()
		for c, there := range want {
			h, found := n.Containers.Find(c.Id)
			if found != there || found && (h.Name != c.Name || h.ID != c.Id || h.Pod.Namespace != "team" || h.Pod.Name == "") {
				t.Errorf("%s: container %s: %+v, %t; want %t", when, c.Name, h, found, there)
			}
		}
	}
	has("listed", map[*api.Container]bool{listed: true, stopped: false})

	first, second := containerOf(b, "first"), containerOf(b, "second")
	for _, c := range []*api.Container{first, second} {
		must.Do(t, r.StartContainer(b, c))
	}
	has("started", map[*api.Container]bool{first: true, second: true})
	r.StopContainer(t, b, first)
	has("stopped", map[*api.Container]bool{first: false, second: true, listed: true})
	must.Do(t, r.Adaptation.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: b}))
	has("sandbox stopped", map[*api.Container]bool{second: false, listed: true})

	// What ended unseen is gone with the next list.
	link.disconnect()
	r.Lists(nil, nil)
	connect(t, r, n.Plugin)
	has("listed again", map[*api.Container]bool{listed: false})
}

// The index says of each container whether it may have a GPU open: the audit ends
// processes by that.
func TestContainerIndexKeepsAccessToGPUs(t *testing.T) {
	const void = v1alpha1.EnvVisibleDevices + "=" + v1alpha1.EnvVisibleDevicesVoid
	n, r := newNode(t), nritest.Start(t)
	before := podOf("before", "")
	given := running(containerOf(before, "given", v1alpha1.EnvVisibleDevices+"=all"))
	given.Linux.Devices = []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: NVIDIAMajor}}
	unknown := running(containerOf(before, "unknown", v1alpha1.EnvVisibleDevices+"=all"))
	r.Lists([]*api.PodSandbox{before}, []*api.Container{given, unknown})
	pod, sliced := created(t, n, r)
	other := podOf("other", "")
	kept, all := containerOf(other, "kept", void), privileged(containerOf(other, "all"))
	sliced.Env = append(sliced.Env, void)
	sliced.Linux.Devices = given.Linux.Devices
	for c, of := range map[*api.Container]*api.PodSandbox{sliced: pod, kept: other, all: other} {
		must.Do(t, r.StartContainer(of, c))
	}
	for c, want := range map[*api.Container]Holder{
		given: {Opens: true}, unknown: {}, sliced: {Sliced: true, Kept: true}, kept: {Kept: true}, all: {Opens: true},
	} {
		h, _ := n.Containers.Find(c.Id)
		if h.Sliced != want.Sliced || h.Kept != want.Kept || h.Opens != want.Opens {
			t.Errorf("%s: %+v, want %+v", c.Name, h, want)
		}
	}
}
