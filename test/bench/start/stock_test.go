// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

// stockKind is what NVIDIA's tool calls the GPUs.
const stockKind = "nvidia.com/gpu"

// stock describes the node's GPUs to the runtime as on a node without Vernier: by
// NVIDIA's own tool, with NVIDIA's own hooks, as it does unless told otherwise.
func stock(b *testing.B, n *system.Node) {
	b.Helper()
	bin := filepath.Dir(n.GPU.Bin)
	argv := n.Argv(filepath.Join(bin, "nvidia-ctk"), "--quiet", "cdi", "generate",
		"--mode=nvml", "--device-name-strategy=uuid",
		"--driver-root="+n.GPU.DriverRoot, "--dev-root="+n.GPU.DriverRoot,
		"--nvidia-cdi-hook-path="+filepath.Join(bin, "nvidia-cdi-hook"),
		"--output="+filepath.Join(n.CDIDir(), "nvidia.yaml"))
	tool := exec.CommandContext(b.Context(), argv[0], argv[1:]...)
	tool.Env = append(os.Environ(), "SIMGPU_STATE="+n.GPU.State, simgpu.DevRoot(n.GPU.DriverRoot))
	if said, err := tool.CombinedOutput(); err != nil {
		b.Fatalf("NVIDIA's spec for %s: %v: %s", n.Name, err, said)
	}
}
