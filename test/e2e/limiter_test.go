// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// A tenant killed with -9 frees its share of memory at once, to the MiB, and the
// processes of a container share one slice.
func TestKilledTenantFreesItsMemory(t *testing.T) {
	parallel(t)
	p := awaitReady(t, create(t, newPod("killed").limit(v1alpha1.ResourceMemMiB, 4096).args("--hold").on(small)))
	session := func(script string) string {
		t.Helper()
		out, err := sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/sh", "-c", script)
		if err != nil {
			out += err.Error()
		}
		return out
	}
	session("cudademo --alloc 2500 --hold >/tmp/first 2>&1 & echo $! >/tmp/pid")
	await(t, "the first process to hold 2500 MiB", func() (bool, string) {
		text := session("cat /tmp/first")
		return strings.Contains(text, "hold pid="), text
	})
	if got := parse(session("cudademo --alloc 1600; true")); got["alloc.error"] != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("1600 MiB beside 2500 of 4096: %v", got)
	}
	session("kill -9 $(cat /tmp/pid)")
	await(t, "its memory to be free", func() (bool, string) {
		got := parse(session("cudademo --alloc 2900"))
		return got["alloc.ok"] == "1", fmt.Sprint(got)
	})
}

// What a tenant does inside its container gives it nothing more: the slice is what
// a session sees, with any environment, and after attempts on every file of ours.
func TestNothingInTheContainerLiftsTheLimit(t *testing.T) {
	parallel(t)
	const slice = 2048
	p := awaitReady(t, create(t, newPod("prisoner").limit(v1alpha1.ResourceMemMiB, slice).args("--hold").on(small)))
	for _, script := range []string{
		"cudademo --alloc 2500",
		"env -i /bin/cudademo --alloc 2500",
		"unset LD_PRELOAD VERNIER_SLICE; cudademo --alloc 2500",
		"LD_PRELOAD= LD_LIBRARY_PATH= VERNIER_SLICE=other cudademo --alloc 2500",
		"rm -f /etc/ld.so.preload; cudademo --alloc 2500",
		"echo >/etc/ld.so.preload; cudademo --alloc 2500",
		"busybox umount /etc/ld.so.preload; cudademo --alloc 2500",
		"rm -rf /usr/local/vernier; cudademo --alloc 2500",
		"busybox mv /usr/local/vernier /tmp; busybox mv /etc/ld.so.preload /tmp; cudademo --alloc 2500",
		"echo >/usr/local/vernier/limits; rm -f /usr/local/vernier/limits; cudademo --alloc 2500",
		"rm -f /usr/local/vernier/counters; cudademo --alloc 2500",
		// Last, for it breaks the counters: from here on CUDA is refused altogether.
		"echo >/usr/local/vernier/counters; cudademo --alloc 2500",
		"cudademo --alloc 1",
	} {
		text, err := sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/sh", "-c", script+" 2>&1")
		got := parse(text)
		if err == nil || got["alloc.ok"] == "1" || got["device.total_mib"] != "" && got["device.total_mib"] != fmt.Sprint(slice) {
			t.Errorf("Invariant 2: after %q the program got %v (%v)", script, got, err)
		}
	}
}

// What an image preloads itself is loaded beside the limiter, after it, also when
// the container is started again; and it sees its slice as every other.
func TestImageWithPreload(t *testing.T) {
	t.Parallel()
	p := newPod("preloads").limit(v1alpha1.ResourceMemMiB, 1024).on(small)
	p.main().Image = system.PreloadImage
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	made := awaitReady(t, create(t, p))
	check := func() {
		t.Helper()
		// When it has said something, everything is loaded.
		if got := values(t, made, "main"); got["device.total_mib"] != "1024" {
			t.Errorf("the container sees %v, want 1024 MiB", got)
		}
		text, err := sys.Cluster.Exec(t.Context(), made.Namespace, made.Name, "main", "/bin/sh", "-c", "cat /etc/ld.so.preload; cat /proc/1/maps")
		list, maps, _ := strings.Cut(text, system.PreloadLibrary+"\n")
		if err != nil || !strings.HasPrefix(list, layout.LibraryPath+"\n") || !containsAll(maps, []string{layout.LibraryPath, system.PreloadLibrary}) {
			t.Errorf("the list is %q and what is loaded %q, %v", list, maps, err)
		}
	}
	check()
	restarts := func(p *corev1.Pod) int32 { return p.Status.ContainerStatuses[0].RestartCount }
	// The shell may end with the container, before it has an end of its own to tell.
	_, ended := sys.Cluster.Exec(t.Context(), made.Namespace, made.Name, "main", "/bin/sh", "-c", "kill -TERM 1")
	awaitPod(t, made, fmt.Sprintf("to run again (%v)", ended), func(p *corev1.Pod) bool {
		return restarts(p) >= 1 && p.Status.ContainerStatuses[0].State.Running != nil
	})
	check()
}

// Processes that get around the limiter are seen: their pod is told, and the metric
// counts them for as long as they run. The figures of those that don't are there too.
func TestUnenforcedProcessIsReported(t *testing.T) {
	parallel(t)
	// One by a loader of its own, one after the folders have been moved away: the
	// mounts cannot be, but what they are in can.
	p := awaitReady(t, create(t, newPod("escape").share(20, 20).on(small).command("/bin/sh", "-c", `
cudademo --alloc 100 --hold >/tmp/limited &
until grep -q hold /tmp/limited; do sleep 0.1; done
`+system.OwnLoader+` /bin/cudademo --hold & echo $! >/tmp/pids
busybox mv /usr/local /usr/elsewhere
export LD_LIBRARY_PATH=/usr/elsewhere/nvidia/lib64 # where some machines have the driver
cudademo --hold & echo $! >>/tmp/pids
wait`)))
	uuid := placement(t, p).Containers["main"].Devices[0].UUID
	series := fmt.Sprintf(`{container="main",namespace=%q,node=%q,pod=%q,uuid=%q} `, p.Namespace, small, p.Name, uuid)
	awaitMetric(t, "vernier_container_memory_used_bytes"+series, 100<<20, (100+contextMiB)<<20)
	awaitMetric(t, "vernier_unenforced_processes"+series, 2, 2)
	awaitEvent(t, p, "UnenforcedProcess", uuid, "passes by the limiter")
	must.Get(sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/sh", "-c", "kill -9 $(cat /tmp/pids)"))(t)
	awaitMetric(t, "vernier_unenforced_processes"+series, 0, 0)
}

// Invariant 3 has a hole that Linux makes, privileged containers: what uses a
// managed device without any slice is reported.
func TestProcessWithoutSliceIsReported(t *testing.T) {
	t.Parallel()
	driver := sys.Node(small).GPU.DriverRoot
	p := newPod("monitor").in(unlabelled).on(small).env("SIMGPU_DEVROOT", "/driver").
		command("/bin/sh", "-c", "LD_LIBRARY_PATH=/driver/usr/lib/x86_64-linux-gnu exec cudademo --hold")
	p.main().SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
	p.main().VolumeMounts = []corev1.VolumeMount{{Name: "driver", MountPath: "/driver"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "driver", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: driver}}}}
	made := awaitReady(t, create(t, p))
	awaitEvent(t, made, "UnenforcedProcess", "has no slice", string(v1alpha1.ResourceCore))
}

// awaitMetric waits until the agent of the small node shows the series with a value
// between the two.
func awaitMetric(t *testing.T, series string, least, most float64) {
	t.Helper()
	await(t, fmt.Sprintf("%s%g to %g", series, least, most), func() (bool, string) {
		text, err := sys.Node(small).Agent.Metrics(t.Context())
		if err != nil {
			return false, err.Error()
		}
		_, rest, found := strings.Cut("\n"+text, "\n"+series)
		now, _, _ := strings.Cut(rest, "\n")
		value, err := strconv.ParseFloat(now, 64)
		return err == nil && least <= value && value <= most, fmt.Sprintf("found %t, value %q", found, now)
	})
}
