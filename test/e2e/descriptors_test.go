// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/test/must"
)

// standIns are what /dev/nvidiaN is on a node for a test: the consoles' memory, which can
// be opened without a driver, and which no container can open by itself. It returns their
// major number.
func standIns(t *testing.T, node string) (major, step uint32) {
	t.Helper()
	major, step = 7, 64 // vcs, vcsu
	dev := filepath.Join(sys.Node(node).GPU.DriverRoot, "dev")
	devices := ledger(t, node).Status.Devices
	for i := range devices {
		at := filepath.Join(dev, fmt.Sprintf("nvidia%d", i))
		var was unix.Stat_t
		must.Do(t, unix.Stat(at, &was))
		put := func(rdev uint64) error {
			if err := os.Remove(at); err != nil {
				return err
			}
			if err := unix.Mknod(at, unix.S_IFCHR|0o666, int(rdev)); err != nil {
				return err
			}
			return os.Chmod(at, 0o666)
		}
		must.Do(t, put(unix.Mkdev(major, uint32(i)*step)))
		t.Cleanup(func() { must.Report(t, put(was.Rdev)) })
		f, err := os.OpenFile(at, os.O_RDWR, 0)
		if err != nil {
			t.Skipf("this kernel has no consoles to stand for GPUs: %v", err)
		}
		_ = f.Close()
	}
	await(t, "the CDI spec to have their numbers", func() (bool, string) {
		spec, err := os.ReadFile(filepath.Join(sys.Node(node).CDIDir(), "vernier.dev-gpu.json"))
		return strings.Count(string(spec), fmt.Sprintf(`"major": %d`, major)) >= len(devices), fmt.Sprintf("%s %v", spec, err)
	})
	return major, step
}

// A container with a slice passes its GPU to one without, which the device cgroup does not
// refuse. The other has it beyond the slice's release. The node agent says so, and where
// the operator wants it ends the process, and nothing else of the container.
func TestHostileDescriptors(t *testing.T) {
	for node, ends := range map[string]bool{small: false, large: true} {
		t.Run(node, func(t *testing.T) {
			shared := t.TempDir()
			major, step := standIns(t, node)
			mounts := func(p *pod) *pod {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "shared", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: shared}}})
				p.main().VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
				return p
			}
			taker := awaitReady(t, create(t, mounts(newPod("taker-"+node).on(node).command("/bin/sh", "-c", "passfd take /shared/socket & exec sleep 1000"))))
			giver := awaitReady(t, create(t, mounts(newPod("giver-"+node).share(10, 10).on(node).command("/bin/sh", "-c", "exec passfd give /shared/socket /dev/nvidia*[0-9]"))))
			in := deviceOf(t, giver)
			logs := func(p *corev1.Pod) string {
				text, err := sys.Logs(t.Context(), p.Namespace, p.Name, "main")
				if err != nil {
					return err.Error()
				}
				return text
			}
			await(t, "the descriptor to be passed", func() (bool, string) {
				text := logs(taker)
				return parse(text)["took.fd"] != "", text + logs(giver)
			})
			number := fmt.Sprintf("%d %d", major, uint32(in.Minor)*step)
			if said := tryIn(t, taker, "mknod /tmp/gpu c "+number+"; head -c 1 /tmp/gpu 2>&1"); !strings.Contains(said, "ermitted") {
				t.Errorf("without a slice it opens the device itself: %q", said)
			}
			event := awaitEvent(t, taker, "DeviceWithoutSlice", in.UUID, "passfd")
			if ends {
				if !strings.Contains(event, "is ended") {
					t.Errorf("it says %q", event)
				}
				await(t, "the process to end", func() (bool, string) {
					// The container's first process takes notice of no other's end.
					said := tryIn(t, taker, "busybox readlink /proc/$(busybox pidof passfd)/exe || echo none")
					return strings.Contains(said, "none"), said
				})
				if now := get(t, taker); now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("its container was harmed: %s", status(now))
				}
				remove(t, giver)
				return
			}
			remove(t, giver) // and with it its slices
			tryIn(t, taker, "busybox kill -USR1 $(busybox pidof passfd)")
			await(t, "an answer of the device after the release", func() (bool, string) {
				text := logs(taker)
				return parse(text)["read.bytes"] == "4", text
			})
			want := fmt.Sprintf(`vernier_processes_without_slice{container="main",namespace="%s",node="%s",pod="%s",uuid="%s"} 1`, taker.Namespace, node, taker.Name, in.UUID)
			if text, err := sys.Node(node).Agent.Metrics(t.Context()); !strings.Contains(text, want) {
				t.Errorf("the metrics lack %s: %v\n%s", want, err, text)
			}
		})
	}
}
