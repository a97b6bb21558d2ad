// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/gpu"
	"vernier.dev/vernier/test/gpu/report"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

// The tests of this file are rows of gpu-cluster (test/gpu/cluster), as are others of this
// package: they run on one node, whose GPU is the machine's or simulated.

const (
	realCard      = "real"
	simulatedCard = "simulated"
)

// runOnCard runs the tests on one node.
func runOnCard(m *testing.M) int {
	node := system.NodeOptions{Name: small}
	large = small
	var err error
	switch *card {
	case "down":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = cluster.Remove(ctx)
	case realCard:
		patience = time.Minute // a row in vain is not to cost the others their time
		node.DriverRoot, err = system.FindDriver()
	case simulatedCard:
		node.GPUs = simgpu.GPU{Model: simgpu.H100}
		err = os.Setenv("SIMGPU_PROFILE", "h100-vm")
	default:
		err = fmt.Errorf("-card=%s: want %s, %s or down", *card, realCard, simulatedCard)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if *card == "down" {
		return 0
	}
	o := system.Options{Name: "gpu-cluster", Nodes: []system.NodeOptions{node}, Keep: *keep}
	var fs unix.Statfs_t
	if err := unix.Statfs("/var/lib", &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		o.Dir = "/dev/shm/vernier" // containers cannot have theirs on overlayfs
	}
	return system.Main(m, o, func(ctx context.Context, s *system.System) error {
		sys = s
		if err := sys.Namespaces(ctx, map[string]bool{namespace: true, unlabelled: false}); err != nil {
			return err
		}
		// Whatever keeps every container from starting is said once.
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := sys.Run(ctx, &newPod("plain").in(unlabelled).command("/bin/sleep", "1000000").Pod)
		return err
	})
}

// onCard skips a test that is a row of gpu-cluster and nothing else.
func onCard(t *testing.T) {
	t.Helper()
	if *card == "" {
		t.Skip("a row of gpu-cluster: test/gpu/cluster runs it")
	}
}

// keepComputeMode skips a test for which the agent would set the compute mode of a real card.
func keepComputeMode(t *testing.T) {
	t.Helper()
	if *card != realCard {
		return
	}
	var seen nvmlFacts
	native(t, &seen, "nvml")
	if mode := device.ComputeMode(seen.Devices[0].ComputeMode); mode != device.ComputeExclusiveProcess {
		t.Skipf("the card's compute mode is %d: the agent would set it to EXCLUSIVE_PROCESS, and gpu-cluster changes nothing on a card", mode)
	}
}

// parallel has a test run beside others, unless it is a row: these run in turn.
func parallel(t *testing.T) {
	t.Helper()
	if *card == "" {
		t.Parallel()
	}
}

// figure keeps a figure for the row, on one line.
func figure(t *testing.T, name string, value any) {
	t.Helper()
	t.Attr(name, strings.Join(strings.Fields(fmt.Sprint(value)), " "))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// native runs the kit's program on the machine, outside the cluster.
func native(t *testing.T, into any, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(kit(t), "kit-program"), append([]string{filepath.Join(kit(t), "kernels.ptx")}, args...)...)
	cmd.Env = nativeEnv()
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("kit-program %v: %v\n%s", args, err, out)
	}
}

// nvmlFacts are what NVML says of the devices, natively.
type nvmlFacts struct {
	Devices []struct {
		UUID, Name  string
		Total, Used uint64
		ComputeMode int `json:"compute_mode"`
	}
}

// usedMemory is what all programs use of the device, as the driver counts it.
func usedMemory(t *testing.T) v1alpha1.MiB {
	t.Helper()
	var now nvmlFacts
	native(t, &now, "nvml")
	return v1alpha1.MiB(now.Devices[0].Used >> 20)
}

func TestCardInventory(t *testing.T) {
	onCard(t)
	var seen nvmlFacts
	native(t, &seen, "nvml")
	status := ledger(t, small).Status
	figure(t, "driver", status.Driver.Version)
	if len(seen.Devices) != len(status.Devices) {
		t.Fatalf("NVML shows %d devices, and the ledger has %d", len(seen.Devices), len(status.Devices))
	}
	var inLedger []string
	for i, d := range status.Devices {
		is := seen.Devices[i]
		figure(t, "device", d.Model)
		figure(t, "memory_mib", int64(d.Mem))
		if d.UUID != is.UUID || d.Model != is.Name || !near(d.Mem, v1alpha1.MiB(is.Total>>20)) || !d.Healthy {
			t.Errorf("the ledger has %+v, NVML shows %+v", d, is)
		}
		inLedger = append(inLedger, d.UUID+", "+d.Model)
	}
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		figure(t, "nvidia-smi", "is not on this machine")
		return
	}
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader").Output()
	if got := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil || !slices.Equal(got, inLedger) {
		t.Errorf("nvidia-smi shows %q, %v; the ledger has %q", got, err, inLedger)
	}
}

// near allows for what the driver reserves now and then.
func near(a, b v1alpha1.MiB) bool { return max(a, b)-min(a, b) <= max(a, b)/50 }

func TestCardCDI(t *testing.T) {
	onCard(t)
	spec, err := gpu.ReadSpec(sys.Node(small).CDIDir())
	if err == nil {
		err = gpu.CheckSpec(spec, len(ledger(t, small).Status.Devices))
	}
	must.Report(t, err)
}

// The kit's rows, with pods for shares. Beside each other they get their quotas within two
// points on a real card.
func TestCardShares(t *testing.T) {
	onCard(t)
	rows := runKit(t, nil, "memory-views", "memory-paths", "nvidia-smi-limited", "quota-30-beside-60", "idle-beside-60", "pytorch-memory", "pytorch-30-beside-60")
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			judge(t, r)
			if *card == realCard {
				within(t, r, map[string]float64{"work_1": 30, "work_2": 60, "work_30": 30, "work_60": 60})
			}
		})
	}
}

// judge ends a test as the kit's row has ended.
func judge(t *testing.T, r *report.Row) {
	t.Helper()
	figure(t, "took_s", r.Seconds)
	for name, value := range r.Figures {
		figure(t, name, value)
	}
	switch r.Verdict {
	case report.Failed:
		t.Error(r.Why)
	case report.Skipped:
		t.Skip(r.Why)
	}
}

// within fails where a figure that is there is over two points off.
func within(t *testing.T, r *report.Row, quotas map[string]float64) {
	t.Helper()
	for name, quota := range quotas {
		if got, is := r.Figures[name].(float64); is && (got < quota-2 || got > quota+2) {
			t.Errorf("%s: %.1f percent of the native throughput, with a quota of %.0f", name, got, quota)
		}
	}
}

// Shares hold with the agent killed, and again with the next.
func TestCardAgentAway(t *testing.T) {
	onCard(t)
	const row = "quota-30-beside-60"
	agent := sys.Node(small).Agent
	restart := onceBack(t, agent)
	away := runKit(t, func() {
		await(t, "two pods with a load to run", func() (bool, string) {
			list, err := sys.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=kit"})
			running := 0
			for _, p := range list.Items {
				if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
					running++
				}
			}
			return running == 2, fmt.Sprint(running, err)
		})
		kill(t, agent)
	}, row)
	restart()
	sys.AwaitServing(t)
	for what, r := range map[string]*report.Row{"away": away[0], "back": runKit(t, nil, row)[0]} {
		t.Run(what, func(t *testing.T) { judge(t, r) })
	}
}

// How long the driver takes to have the memory of a pod back, and the ledger its room.
func TestCardMemoryComesBack(t *testing.T) {
	onCard(t)
	const held = v1alpha1.MiB(1024)
	for how, end := range map[string]func(*corev1.Pod) error{
		"deletion": func(p *corev1.Pod) error {
			return sys.Kube.CoreV1().Pods(p.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{})
		},
		"SIGKILL": func(p *corev1.Pod) error {
			_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
			running, err := containers(t, p)
			if err != nil {
				return err
			}
			return syscall.Kill(running[id], syscall.SIGKILL)
		},
	} {
		t.Run(how, func(t *testing.T) {
			before := usedMemory(t)
			p := awaitReady(t, create(t, newPod("holds-"+strings.ToLower(how)).limit(v1alpha1.ResourceMemMiB, int64(2*held)).
				args("--alloc", strconv.Itoa(int(held)), "--hold").on(small)))
			if got := values(t, p, "main"); got["allocated.mib"] != itoa(int64(held)) || usedMemory(t) < before+held {
				t.Fatalf("it says %v, and the driver counts %d MiB, before %d", got, usedMemory(t), before)
			}
			begun := time.Now()
			must.Do(t, end(p))
			await(t, "the driver to have the memory back", func() (bool, string) {
				now := usedMemory(t)
				return now < before+held/4, fmt.Sprint(now, " MiB, before ", before)
			})
			figure(t, "driver_ms", milliseconds(time.Since(begun)))
			await(t, "the ledger to have its room back", func() (bool, string) {
				left := slicesOf(ledger(t, small), p.UID)
				return len(left) == 0, fmt.Sprintf("%+v", left)
			})
			figure(t, "ledger_ms", milliseconds(time.Since(begun)))
		})
	}
}

// How long it takes from a victim's eviction until the winner's first kernel is done.
func TestCardPreemption(t *testing.T) {
	onCard(t)
	for name, value := range map[string]int32{"card-low": 10, "card-high": 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		must.Get(sys.Kube.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			must.Report(t, sys.Kube.SchedulingV1().PriorityClasses().Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
	}
	low := newPod("low").share(100, 0)
	low.Spec.PriorityClassName = "card-low"
	values(t, awaitReady(t, create(t, low)), "main") // it holds, and heeds SIGTERM
	high := newPod("high").share(100, 0).args("--burn", "50", "--hold")
	high.Spec.PriorityClassName = "card-high"
	begun := time.Now()
	winner, course := run1(t, high)
	if got := values(t, winner, "main"); got["burn.kernels"] == "" || got["burn.kernels"] == "0" {
		t.Errorf("it did not compute: %v", got)
	}
	computed := time.Since(begun)
	if course.Evicted == 0 || course.Evicted > course.Granted {
		t.Errorf("the other had to leave after %v, and it was placed after %v", course.Evicted, course.Granted)
	}
	figure(t, "evicted_ms", milliseconds(course.Evicted))
	figure(t, "eviction_to_running_ms", milliseconds(course.Running-course.Evicted))
	figure(t, "eviction_to_kernel_ms", milliseconds(computed-course.Evicted))
}

// run1 makes a pod that the test's end removes, and returns what happened when until it ran.
func run1(t *testing.T, p *pod) (*corev1.Pod, system.Course) {
	t.Helper()
	course := must.Get(sys.Run(t.Context(), &p.Pod))(t)
	made := get(t, &p.Pod)
	t.Cleanup(func() { remove(t, made) })
	return made, course
}

// Metrics and page show what NVML shows.
func TestCardViews(t *testing.T) {
	onCard(t)
	p := awaitReady(t, create(t, newPod("viewed").share(10, 10)))
	d := ledger(t, small).Status.Devices[0]
	awaitMetric(t, fmt.Sprintf("vernier_device_memory_total_bytes{model=%q,node=%q,uuid=%q} ", d.Model, small, d.UUID),
		float64(d.Mem.Bytes()), float64(d.Mem.Bytes()))
	token := account(t, "card-viewer", "vernier-viewer")
	await(t, "the page to show the device and the pod", func() (bool, string) {
		_, text := readPage(pageOf(t, 0, token).URL)
		return strings.Contains(text, d.UUID) && strings.Contains(text, namespace+"/"+p.Name), text
	})
}
