// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/test/must"
)

// cutting is held by a parallel test that has the node in MIG mode to itself.
var cutting sync.Mutex

// instance asks for a share on the node whose GPU is in MIG mode.
func instance(name string, core, mem int64) *pod {
	p := newPod(name).share(core, mem).on(cut)
	p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
	return p
}

// What the simulated A100 says of its kinds of instances.
var (
	smallest = v1alpha1.MIGPlace{Profile: 19, Start: 6, Size: 1}
	half     = v1alpha1.MIGPlace{Profile: 9, Start: 4, Size: 4}
	theirs   = v1alpha1.MIGPlace{Profile: 14, Start: 0, Size: 2}
)

const smallestMiB = "9728"

// driver opens the NVML of the node in MIG mode, as an administrator on the node
// would.
func driver(t *testing.T) *inventory.Inventory {
	t.Helper()
	inv, lib, err := inventory.Open(inventory.Options{Library: sys.Node(cut).GPU.NVML()})
	must.Do(t, err)
	t.Cleanup(func() { lib.Shutdown() })
	must.Get(inv.Scan())(t)
	return inv
}

func instances(t *testing.T, inv *inventory.Inventory) []v1alpha1.MIGInstance {
	t.Helper()
	var all []v1alpha1.MIGInstance
	await(t, "the driver to tell the device's instances", func() (bool, string) {
		var err error
		// One that the agent destroys meanwhile it may not find any more.
		all, err = inv.Instances(ledger(t, cut).Status.Devices[0].UUID)
		return err == nil, fmt.Sprint(err)
	})
	return all
}

func awaitInstances(t *testing.T, inv *inventory.Inventory, want ...v1alpha1.MIGPlace) {
	t.Helper()
	await(t, fmt.Sprintf("the device to be cut into %v", want), func() (bool, string) {
		var got []v1alpha1.MIGPlace
		for _, i := range instances(t, inv) {
			got = append(got, i.MIGPlace)
		}
		return slices.Equal(got, want), fmt.Sprint(got)
	})
}

// awaitShown waits until the ledger shows that many instances. It has its own
// context: it runs in clean-ups, when the test's is over.
func awaitShown(t *testing.T, n int) (shown []v1alpha1.MIGInstance) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		l := &v1alpha1.SliceLedger{}
		if err := sys.Client.Get(ctx, client.ObjectKey{Name: cut}, l); err != nil {
			return false, nil
		}
		shown = l.Status.Devices[0].Instances
		return len(shown) == n, nil
	})
	if err != nil {
		t.Errorf("the ledger shows %+v, want %d instances", shown, n)
	}
	return shown
}

// Shares on a device in MIG mode are instances: made as pods come, used where
// somebody else has made one, destroyed as they go, and there all the same after the
// agent died.
func TestMIG(t *testing.T) {
	t.Parallel()
	cutting.Lock()
	t.Cleanup(cutting.Unlock)
	inv := driver(t)
	device := ledger(t, cut).Status.Devices[0].UUID
	awaitShown(t, 0) // those of a test before go after its pods
	must.Do(t, inv.CreateInstance(device, theirs))
	t.Cleanup(func() {
		must.Report(t, inv.DestroyInstance(device, theirs))
		awaitShown(t, 0)
	})
	foreign := instances(t, inv)[0].UUID
	if shown := awaitShown(t, 1); len(shown) == 1 && shown[0].Own {
		t.Errorf("%+v is said to be the agent's", shown[0])
	}

	one := awaitReady(t, create(t, instance("mig-one", 10, 5)))
	if placed := placement(t, one).Containers["main"]; placed.Mode != v1alpha1.ModeMIG {
		t.Errorf("placed %+v, want mode mig", placed)
	}
	awaitGuarantee(t, one, "main", v1alpha1.GuaranteeHardware)
	if got := values(t, one, "main"); got["device"] != "1" || got["device.total_mib"] != smallestMiB {
		t.Errorf("the container sees %v, want one device of %s MiB", got, smallestMiB)
	}
	big := awaitReady(t, create(t, instance("mig-half", 40, 40).annotate(v1alpha1.AnnotationMode, "mig")))
	if s := slicesOf(ledger(t, cut), big.UID); len(s) != 1 || s[0].MIG == nil || s[0].MIG.Size != half.Size {
		t.Errorf("granted %+v, want half of the device", s)
	}
	made := instances(t, inv)

	// Somebody else's instance is as good as one of ours.
	taken := awaitReady(t, create(t, instance("mig-theirs", 20, 20)))
	if s := slicesOf(ledger(t, cut), taken.UID); len(s) != 1 || s[0].MIG == nil || *s[0].MIG != theirs {
		t.Errorf("granted %+v, want the instance that is there: %+v", s, theirs)
	}
	if now := instances(t, inv); !slices.Equal(now, made) {
		t.Errorf("instances %+v, want %+v as before", now, made)
	}

	// No layout has room for another half beside all this; it waits for one.
	waiting := create(t, instance("mig-waits", 40, 40))
	awaitEvent(t, waiting, "no place for an instance of that much")

	// Invariant 4: nothing is made anew and nobody is touched.
	agent := sys.Node(cut).Agent
	kill(t, agent)
	onceBack(t, agent)()
	remove(t, big)
	awaitReady(t, waiting)
	for _, p := range []*corev1.Pod{one, taken} {
		awaitGuarantee(t, p, "main", v1alpha1.GuaranteeHardware)
		if c := get(t, p).Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Running == nil {
			t.Errorf("pod %s: %+v", p.Name, c)
		}
	}

	for _, p := range []*corev1.Pod{one, taken, waiting} {
		remove(t, p)
	}
	awaitInstances(t, inv, theirs)
	if left := instances(t, inv); left[0].UUID != foreign {
		t.Error("somebody else's instance was destroyed")
	}
}

// What a tenant without privileges may try on a device in MIG mode gives it no more
// than its own instance: the environment, the nodes of its neighbour, a second
// container, the device itself.
func TestMIGBypass(t *testing.T) {
	inv := driver(t)
	awaitShown(t, 0) // one of a test before would be used, wherever it is
	neighbour := awaitReady(t, create(t, instance("mig-neighbour", 10, 5)))
	awaitInstances(t, inv, smallest)
	other := instances(t, inv)[0].UUID

	p := instance("mig-greedy", 10, 5).env("CUDA_VISIBLE_DEVICES", "0,1,"+other).env("NVIDIA_DRIVER_CAPABILITIES", "all").
		also(bystander("second"))
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	made := create(t, p)
	if got := values(t, made, "main"); got["device"] != "1" || got["device.total_mib"] != smallestMiB {
		t.Errorf("asking for more by the environment: %v", got)
	}
	if got := values(t, made, "second"); got["device"] != "" || got["error"] != "1" {
		t.Errorf("Invariant 3: a container without a share beside it sees %v", got)
	}

	exec := func(p *corev1.Pod, script string) string {
		out, err := sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/sh", "-c", script)
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return strings.TrimSpace(out)
	}
	const list = "ls /dev/nvidia-caps | sort | tr '\\n' ' '"
	own, others := exec(made, list), exec(neighbour, list)
	if len(strings.Fields(own)) != 2 || own == others {
		t.Errorf("it has nodes %q, the neighbour %q", own, others)
	}
	// Root in the container may make nodes, and may not open them.
	for _, name := range strings.Fields(others) {
		minor := strings.TrimPrefix(name, "nvidia-cap")
		if got := exec(made, "mknod /dev/nvidia-caps/"+name+" c 510 "+minor+" 2>/dev/null; head -c 1 /dev/nvidia-caps/"+name+" 2>&1 || true"); !strings.Contains(got, "ermitted") && !strings.Contains(got, "No such file") {
			t.Errorf("opening the neighbour's %s: %q", name, got)
		}
	}
	if got := exec(made, "unset CUDA_VISIBLE_DEVICES; /bin/cudademo 2>&1 | grep -c total_mib="+smallestMiB); got != "1" {
		t.Errorf("with the neighbour's nodes made it sees %s devices, want its own", got)
	}
	if text := refused(t, instance("mig-many", 10, 6).limit(v1alpha1.ResourceGPUs, 2).annotate(v1alpha1.AnnotationMode, "mig")); !strings.Contains(text, "ask for one GPU") {
		t.Error(text)
	}
}
