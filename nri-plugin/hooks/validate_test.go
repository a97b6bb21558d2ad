// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"os"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
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
				n, r := connected(t)
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
	n, r := connected(t)
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
			n, r := connected(t)
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
	n, r := connected(t)
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

// A static pod has the UID that its manifest names, another's or a path: it gets no slice by
// it, and nothing is written where it points.
func TestHostileUIDs(t *testing.T) {
	n, r := connected(t)
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
		entries := must.Get(os.ReadDir(dir))(t)
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
	n, r, pod := granted(t)
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
