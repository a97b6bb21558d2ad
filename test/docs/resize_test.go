// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// The PyTorch example halves its batch when its share is to be halved, and takes it up again.
func TestPyTorchFollowsItsShare(t *testing.T) {
	if exec.Command("python3", "-c", "import torch").Run() != nil {
		t.Skip("python3 has no PyTorch")
	}
	file := filepath.Join(t.TempDir(), "share.json")
	write := func(text string) {
		t.Helper()
		must.Do(t, os.WriteFile(file+".new", []byte(text), 0o644))
		must.Do(t, os.Rename(file+".new", file))
	}
	write(`{"devices":[{"uuid":"GPU-0","core":50,"memMiB":8000}]}`)
	run := exec.CommandContext(t.Context(), "python3", "../../docs/examples/resize/train.py", "3", "step")
	run.Env = append(os.Environ(), "SHARE="+file)
	run.Stderr = os.Stderr
	in, out := must.Get(run.StdinPipe())(t), must.Get(run.StdoutPipe())(t)
	must.Do(t, run.Start())
	lines := bufio.NewScanner(out)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("%q, want %q", lines.Text(), want)
		}
	}
	next := func() { must.Get(in.Write([]byte("\n")))(t) }
	says("8000 MiB, batch 512")
	write(`{"devices":[{"uuid":"GPU-0","core":50,"memMiB":8000}],"next":[{"uuid":"GPU-0","core":50,"memMiB":4000}]}`)
	next()
	says("4000 MiB, batch 256")
	write(`{"devices":[{"uuid":"GPU-0","core":50,"memMiB":8000}]}`)
	next()
	says("8000 MiB, batch 512")
	next()
	says("done, batch 512")
	must.Do(t, run.Wait())
}
