// SPDX-License-Identifier: Apache-2.0

// Package samples asks NVML how busy each process keeps a GPU. As with package driver a
// child process does the asking, so that a crash or a hang of the driver's is not
// vgpu-run's own.
package samples

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/vgpu-limiter/utilization"
)

// Sampler keeps the child, from the first question on. One goroutine at a time may use it.
type Sampler struct {
	// Child makes the command whose only work is to call Answer.
	Child func() *exec.Cmd

	in     io.WriteCloser
	out    *json.Decoder
	failed error
}

// Ask is how busy each process keeps a GPU: utilization.OfProcesses. It stays with its first
// error, as of a machine without NVML.
func (s *Sampler) Ask(uuid string) (map[int]int, error) {
	if s.failed == nil && s.in == nil {
		s.failed = s.start()
	}
	if s.failed != nil {
		return nil, s.failed
	}
	var answer map[int]int
	if _, s.failed = fmt.Fprintln(s.in, uuid); s.failed == nil {
		s.failed = s.out.Decode(&answer)
	}
	return answer, s.failed
}

func (s *Sampler) start() error {
	cmd := s.Child()
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// What a terminal sends is not for it. It ends with its input, or, if it hangs in the
	// driver, with vgpu-run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.in, s.out = in, json.NewDecoder(out)
	return nil
}

// Answer answers each UUID, a line of in, by a line of out, until in ends.
func Answer(in io.Reader, out io.Writer) error {
	lib := nvml.New()
	if r := lib.Init(); r != nvml.SUCCESS {
		return r
	}
	if err := lib.Extensions().LookupSymbol(utilization.Symbol); err != nil {
		return err
	}
	seen := map[string]uint64{}
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		uuid := lines.Text()
		device, r := lib.DeviceGetHandleByUUID(uuid)
		if r != nvml.SUCCESS {
			return r
		}
		busy, last, err := utilization.OfProcesses(device, seen[uuid])
		if err != nil {
			return err
		}
		seen[uuid] = last
		if err := answers.Encode(busy); err != nil {
			return err
		}
	}
	return nil
}
