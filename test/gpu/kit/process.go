// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// kit is the machine, as far as the rows before have found it out.
type kit struct {
	folder, scratch string
	simulated       bool
	shares          string // what runs programs within shares; empty is vgpu-run

	driver  string
	devices []gpu
	before  facts // as NVML told them at the beginning

	perUS  float64            // iterations of kit_work in a microsecond
	native map[string]float64 // launches a second of a load, by its arguments
}

// gpu is a device as CUDA shows it.
type gpu struct {
	Index          int    `json:"index"`
	Name           string `json:"name"`
	UUID           string `json:"uuid"`
	Total          uint64 `json:"total"`
	Free           uint64 `json:"free"`
	Processors     int    `json:"multiprocessors"`
	ComputeMode    int    `json:"compute_mode"`
	Capability     string `json:"capability"`
	ConcurrentUVM  int    `json:"concurrent_managed"`
	MIG            int    `json:"mig"`
	UsedByOthers   uint64 `json:"used_at_begin"`
	OtherProcesses int    `json:"processes_at_begin"`
}

// facts are the devices as NVML shows them.
type facts struct {
	Driver  string
	Devices []nvmlDevice
}

type nvmlDevice struct {
	UUID, Name  string
	Total, Used uint64
	MIG         int
	ComputeMode int `json:"compute_mode"`
	Processes   []struct {
		PID  int
		Used uint64
	}
}

const (
	mib  = 1 << 20
	home = 0 // index of the device in k.devices that the rows use
)

func (k *kit) uuid() string { return k.devices[home].UUID }

// limit is the memory limit of the rows, in MiB: small beside what is free.
func (k *kit) limit() int { return int(min(2048, k.devices[home].Free/mib/4/64*64)) }

// most is what a program may ask for at most where the limit fails to hold, in MiB: never
// more than is free.
func (k *kit) most() int { return int(min(uint64(2*k.limit()), k.devices[home].Free/mib*9/10)) }

// seconds is how long a load runs.
func (k *kit) seconds(real float64) float64 {
	if k.simulated {
		return 1
	}
	return real
}

func (k *kit) path(name string) string { return filepath.Join(k.folder, name) }

// share is the flags of vgpu-run; nil runs a program without it.
type share []string

func core(percent int) share { return share{"--core", strconv.Itoa(percent)} }
func memory(mebibytes int) share {
	return share{"--mem-mib", strconv.Itoa(mebibytes)}
}

// process is a program that runs.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer
}

// command is argv within a share of the device, or natively on it. It ends, with all that
// is in its process group, when ctx does.
func (k *kit) command(ctx context.Context, s share, argv ...string) *exec.Cmd {
	env := os.Environ()
	if s == nil {
		env = append(env, "CUDA_VISIBLE_DEVICES="+k.uuid())
	} else {
		limited := []string{k.shares}
		if k.shares == "" {
			limited = []string{k.path("vgpu-run"), "--run-dir", filepath.Join(k.scratch, "run"), "--report", "/dev/null", "--json"}
			if !strings.Contains(strings.Join(s, " "), "--device") {
				limited = append(limited, "--device", k.uuid())
			}
		}
		argv = append(append(append(limited, s...), "--"), argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Dir = k.scratch
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (k *kit) start(ctx context.Context, s share, argv ...string) (*process, error) {
	return begin(k.command(ctx, s, argv...))
}

func begin(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd}
	p.cmd.Stderr = &p.errors
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	return p, p.cmd.Start()
}

// ready waits for the word.
func (p *process) ready() error {
	for {
		line, err := p.out.ReadString('\n')
		if line == "ready\n" {
			return nil
		}
		if err != nil || strings.HasPrefix(line, "{") {
			return p.trouble(line, err)
		}
	}
}

// goOn lets it go on, and result reads what it prints last.
func (p *process) goOn() error {
	_, err := io.WriteString(p.in, "\n")
	return err
}

func (p *process) result(into any) error {
	text, readErr := io.ReadAll(p.out)
	_ = p.in.Close()
	err := p.cmd.Wait()
	if err != nil || readErr != nil {
		return p.trouble(string(text), errors.Join(err, readErr))
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], into); err != nil {
		return p.trouble(string(text), err)
	}
	return nil
}

// line reads one JSON object while it runs on.
func (p *process) line(into any) error {
	text, err := p.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(text), into)
	}
	if err != nil {
		return p.trouble(text, err)
	}
	return nil
}

// end lets it end by closing its input.
func (p *process) end() error {
	_ = p.in.Close()
	_, _ = io.Copy(io.Discard, p.out)
	return p.cmd.Wait()
}

// trouble is an error with the last of what the program printed.
func (p *process) trouble(printed string, err error) error {
	if err == nil {
		err = errors.New("it ended early")
	}
	printed = strings.TrimSpace(printed + "\n" + p.errors.String())
	if n := len(printed); n > 1200 {
		printed = "… " + printed[n-1200:]
	}
	return fmt.Errorf("%s: %w: %s", name(p.cmd.Args), err, printed)
}

// name is a command without paths and what is the same for all.
func name(argv []string) string {
	var words []string
	for _, a := range argv {
		words = append(words, filepath.Base(a))
	}
	return strings.Join(words, " ")
}

// program runs the kit's CUDA program to its end.
func (k *kit) program(ctx context.Context, s share, into any, args ...string) error {
	return k.ask(ctx, s, into, k.argv("kernels.ptx", args...)...)
}

func (k *kit) argv(kernels string, args ...string) []string {
	return append([]string{k.path("kit-program"), k.path(kernels)}, args...)
}

func (k *kit) ask(ctx context.Context, s share, into any, argv ...string) error {
	p, err := k.start(ctx, s, argv...)
	if err != nil {
		return err
	}
	return p.result(into)
}
