// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
)

//go:embed pytorch_train.py
var trainProgram string

//go:embed pytorch_memory.py
var memoryProgram string

// pytorch runs Python programs natively and under vgpu-run, on one device.
type pytorch struct {
	vgpuRun, uuid string
	env           []string
}

// withPyTorch skips the test where PyTorch cannot use a GPU even natively.
func withPyTorch(t *testing.T) pytorch {
	t.Helper()
	m, _, _, now := look(t)
	usable := now.Usable()
	if len(usable) == 0 {
		t.Fatalf("no device is healthy and out of MIG mode: %+v", now.Devices)
	}
	p := pytorch{uuid: usable[0].UUID, env: append(os.Environ(), m.env...)}
	p.env = append(p.env, "CUDA_VISIBLE_DEVICES="+p.uuid)
	try := exec.Command("python3", "-c", "import torch; torch.zeros(1).cuda(); print(torch.__version__)")
	try.Env = p.env
	said, err := try.CombinedOutput()
	if err != nil {
		t.Skipf("python3 on this machine has no PyTorch that can use its GPU (pip install torch): %v: %s", err, bytes.TrimSpace(said))
	}
	t.Logf("PyTorch %s on %s", bytes.TrimSpace(said), usable[0].Model)
	root, err := manifests.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, argv := range [][]string{
		{"make", "-s", "-C", filepath.Join(root, "vgpu-limiter"), "OUT=" + dir},
		{"go", "build", "-C", root, "-o", dir, "./cmd/vgpu-run"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	p.vgpuRun = filepath.Join(dir, "vgpu-run")
	return p
}

// start starts a program within a share, or natively without one, and returns what
// waits for the JSON object that it prints last.
func (p pytorch) start(t *testing.T, share []string, program string, args ...string) (result func(into any)) {
	t.Helper()
	argv := append([]string{"python3", "-c", program}, args...)
	if share != nil {
		argv = append(append([]string{p.vgpuRun, "--device", p.uuid}, share...), append([]string{"--"}, argv...)...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = p.env
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func(into any) {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v\n%s%s", share, err, out.Bytes(), problems.Bytes())
		}
		lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
		if err := json.Unmarshal(lines[len(lines)-1], into); err != nil {
			t.Fatalf("%v: %v\n%s", share, err, out.Bytes())
		}
	}
}

// training is what pytorch_train.py prints.
type training struct {
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
	Loss    float64 `json:"loss"`
}

func (r training) speed() float64 { return float64(r.Steps) / r.Seconds }

// A training loop that keeps the device busy runs at its share of the speed that it
// has natively, alone and beside another, and learns the same.
func TestPyTorchTraining(t *testing.T) {
	p := withPyTorch(t)
	const seconds = 20
	train := func(share []string) func(any) {
		return p.start(t, share, trainProgram, strconv.Itoa(seconds))
	}
	var native training
	train(nil)(&native)
	t.Logf("native: %.1f steps/s, loss %.3f", native.speed(), native.Loss)
	check := func(what string, quota int, got training) {
		t.Helper()
		share := 100 * got.speed() / native.speed()
		t.Logf("%s, quota %d: %.1f steps/s, %.1f percent of native", what, quota, got.speed(), share)
		// The bound is for a limit that does not hold; how well it holds is the
		// figure above.
		if share > float64(quota)+6 || share < float64(quota)/2 {
			t.Errorf("%s: with a quota of %d percent it runs at %.1f percent of its native speed", what, quota, share)
		}
		if !(got.Loss < 2*native.Loss+0.1) {
			t.Errorf("%s: loss %.3f, natively %.3f", what, got.Loss, native.Loss)
		}
	}
	for _, quota := range []int{10, 30, 60} {
		var got training
		train([]string{"--core", strconv.Itoa(quota)})(&got)
		check("alone", quota, got)
	}
	var low, high training
	first, second := train([]string{"--core", "30"}), train([]string{"--core", "60"})
	first(&low)
	second(&high)
	check("beside 60", 30, low)
	check("beside 30", 60, high)
	var whole training
	train([]string{"--core", "100"})(&whole)
	t.Logf("limiter without a quota: %.1f percent of native", 100*whole.speed()/native.speed())
}

// memory is what pytorch_memory.py prints.
type memory struct {
	Total, Held, Reserved uint64
	Error                 string
}

// PyTorch sees its slice as the device, gets memory up to it, and its own
// out-of-memory error past it; the driver's own count agrees.
func TestPyTorchMemory(t *testing.T) {
	p := withPyTorch(t)
	for _, slice := range []v1alpha1.MiB{2048, 8192} {
		var got memory
		begun := time.Now()
		p.start(t, []string{"--mem-mib", fmt.Sprint(slice)}, memoryProgram)(&got)
		t.Logf("slice of %d MiB: %+v in %s", slice, got, time.Since(begun))
		if got.Total != slice.Bytes() {
			t.Errorf("slice of %d MiB: PyTorch sees a device of %d bytes", slice, got.Total)
		}
		if got.Error != "OutOfMemoryError" || got.Reserved > slice.Bytes() {
			t.Errorf("slice of %d MiB: %q with %d bytes reserved", slice, got.Error, got.Reserved)
		}
		// The context and the libraries' kernels take the rest.
		if got.Held < slice.Bytes()/2 {
			t.Errorf("slice of %d MiB: only %d bytes of it could be had", slice, got.Held)
		}
	}
}
