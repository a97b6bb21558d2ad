// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/nritest"
)

// Invariant 3: no way past the slices that NRI can see reaches a GPU.
func TestVetoWaysPastTheSlices(t *testing.T) {
	cdi := func(name string) func(*api.ContainerAdjustment) {
		return func(a *api.ContainerAdjustment) { a.AddCDIDevice(&api.CDIDevice{Name: name}) }
	}
	cases := map[string]struct {
		other func(*api.ContainerAdjustment)
		ctr   func(*api.Container)
		says  string
	}{
		"plugin, NVIDIA's device":          {other: cdi("nvidia.com/gpu=all"), says: "nvidia.com/gpu=all"},
		"plugin, our device":               {other: cdi("vernier.dev/gpu=" + gpu1), says: gpu1},
		"plugin, other vendor of NVIDIA's": {other: cdi("management.nvidia.com/gpu=all"), says: "management"},
		"plugin, device node": {other: func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1})
		}, says: "/dev/nvidia1"},
		"plugin, device node by another name": {other: func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/innocent", Type: "c", Major: 195, Minor: 1})
		}, says: "/dev/innocent"},
		"device plugin, CDI": {ctr: func(c *api.Container) {
			c.CDIDevices = []*api.CDIDevice{{Name: "k8s.device-plugin.nvidia.com/gpu=0"}}
		}, says: "k8s.device-plugin.nvidia.com/gpu=0"},
		"device plugin, node": {ctr: func(c *api.Container) {
			c.Linux.Devices = []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
		}, says: "/dev/nvidia0"},
		"annotation": {ctr: func(c *api.Container) {
			c.Annotations = map[string]string{"cdi.k8s.io/x": "other.org/nic=1, nvidia.com/gpu=0"}
		}, says: "cdi.k8s.io/x"},
		"mount": {ctr: func(c *api.Container) {
			c.Mounts = []*api.Mount{{Destination: "/var/run/nvidia-container-devices/all", Source: "/dev/null"}}
		}, says: "/var/run/nvidia-container-devices/all"},
		"mount, spelled otherwise": {ctr: func(c *api.Container) {
			c.Mounts = []*api.Mount{{Destination: "/var/run//nvidia-container-devices/all", Source: "/dev/null"}}
		}, says: "mount /var/run//nvidia-container-devices/all"},
		"mount, spelled the long way": {ctr: func(c *api.Container) {
			c.Mounts = []*api.Mount{{Destination: "/var/lib/../run/./nvidia-container-devices/all", Source: "/dev/null"}}
		}, says: "mount /var/lib/../run"},
		"mount of the folder": {ctr: func(c *api.Container) {
			c.Mounts = []*api.Mount{{Destination: "/var/run/nvidia-container-devices", Source: "/dev/null"}}
		}, says: "mount /var/run/nvidia-container-devices"},
		"device node, spelled otherwise": {ctr: func(c *api.Container) {
			c.Linux.Devices = []*api.LinuxDevice{{Path: "/dev//nvidia-uvm", Type: "c", Major: 511}}
		}, says: "/dev//nvidia-uvm"},
	}
	for name, c := range cases {
		for _, shares := range []string{"", share30} {
			t.Run(name+" "+shares, func(t *testing.T) {
				n, r := newNode(t), nritest.Start(t)
				connect(t, r, n.Plugin)
				pod := podOf("a", shares)
				if shares != "" {
					n.ledger.grant(gpu0, slice30(pod))
				}
				if c.other != nil {
					connectOther(t, r, c.other)
				}
				ctr := containerOf(pod, "main")
				if c.ctr != nil {
					c.ctr(ctr)
				}
				_, err := r.Create(pod, ctr)
				refusedFor(t, err, c.says)
			})
		}
	}
}

// Other plugins may go on doing what is none of our business.
func TestVetoLeavesOthersAlone(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	connectOther(t, r, func(a *api.ContainerAdjustment) {
		a.AddEnv("OTHER", "1")
		a.AddCDIDevice(&api.CDIDevice{Name: "other.org/nic=1"})
		a.AddDevice(&api.LinuxDevice{Path: "/dev/other", Type: "c", Major: 10})
	})
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	for _, name := range []string{"main", "sidecar"} {
		if _, err := r.Create(pod, containerOf(pod, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Invariant 2 and 3: what we gave a container is there in the end, also when a
// plugin after us takes it away.
func TestVetoMissing(t *testing.T) {
	cases := map[string]struct {
		shares string
		other  func(*api.ContainerAdjustment)
		says   string
	}{
		"mark": {share30, func(a *api.ContainerAdjustment) { a.RemoveEnv(v1alpha1.EnvSlice) }, v1alpha1.EnvSlice},
		"folder": {share30, func(a *api.ContainerAdjustment) {
			a.RemoveMount("/usr/local/vernier")
			a.AddMount(&api.Mount{Destination: "/usr/local/vernier", Source: "/dev", Type: "bind"})
		}, "/usr/local/vernier"},
		"limits": {share30, func(a *api.ContainerAdjustment) {
			a.AddMount(&api.Mount{Destination: "/usr/local/vernier/limits", Source: "/dev/null", Type: "bind"})
		}, "/usr/local/vernier/limits"},
		"preload": {share30, func(a *api.ContainerAdjustment) { a.RemoveMount("/etc/ld.so.preload") }, "/etc/ld.so.preload"},
		"void": {"", func(a *api.ContainerAdjustment) {
			a.RemoveEnv(v1alpha1.EnvVisibleDevices)
			a.AddEnv(v1alpha1.EnvVisibleDevices, "all")
		}, v1alpha1.EnvVisibleDevices},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			connect(t, r, n.Plugin)
			connectOther(t, r, c.other)
			pod := podOf("a", c.shares)
			if c.shares != "" {
				n.ledger.grant(gpu0, slice30(pod))
			}
			_, err := r.Create(pod, containerOf(pod, "main"))
			refusedFor(t, err, c.says)
		})
	}
}

// Invariant 2: a volume of the pod's own does not lie over what enforces its slice.
// Elsewhere, and where there is no slice, it may be what it likes.
func TestVetoCovered(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	pod, plain := podOf("a", share30), podOf("plain", "")
	n.ledger.grant(gpu0, slice30(pod))
	with := func(pod *api.PodSandbox, destination string) error {
		c := containerOf(pod, "main")
		c.Mounts = []*api.Mount{{Destination: destination, Source: "/volume", Type: "bind"}}
		_, err := r.Create(pod, c)
		n.Table.Detach(c.Id)
		return err
	}
	for _, covered := range []string{"/usr/local/vernier/limits", "/usr/local/vernier/libvgpu.so", "/usr/local/vernier/",
		"/usr/local/./vernier/counters", "/etc//ld.so.preload", "/etc/ld.so.preload"} {
		refusedFor(t, with(pod, covered), covered, "remove it")
		if err := with(plain, covered); err != nil {
			t.Errorf("without a slice: %v", err)
		}
	}
	for _, beside := range []string{"/usr/local", "/usr/local/vernier-models", "/etc", "/etc/ld.so.preload.d"} {
		if err := with(pod, beside); err != nil {
			t.Errorf("%s: %v", beside, err)
		}
	}
}

// What the runtime has at /dev/shm, ours takes the place of; a mount that would lie over
// ours there is another.
func TestVetoCoveredSharedMemory(t *testing.T) {
	ours := &api.ContainerAdjustment{}
	ours.AddMount(&api.Mount{Destination: sharedMemory, Source: "/ours", Type: "bind"})
	for destination, refused := range map[string]bool{"/dev/shm": false, "/dev": false, "/dev//shm": true, "/dev/shm/": true, "/dev/shm/cache": true} {
		m := &api.Mount{Destination: destination, Source: "/its", Type: "bind"}
		if err := uncovered(&api.Container{Mounts: []*api.Mount{m}}, ours, ours); (err != nil) != refused {
			t.Errorf("%s: %v", destination, err)
		}
		if err := uncovered(&api.Container{}, &api.ContainerAdjustment{Mounts: []*api.Mount{m}}, ours); (err != nil) != (destination != "/dev") {
			t.Errorf("%s of another plugin: %v", destination, err)
		}
	}
}

// Invariant 2: the veto refuses a container that asks for a slice and did not
// come through our creation, as after the runtime has passed over a plugin that
// crashed inside it.
func TestVetoPassedOver(t *testing.T) {
	n := newNode(t)
	pod := podOf("a", share30)
	err := n.ValidateContainerAdjustment(t.Context(), &api.ValidateContainerAdjustmentRequest{
		Pod: pod, Container: containerOf(pod, "main"),
	})
	refusedFor(t, err, "slice")
}
