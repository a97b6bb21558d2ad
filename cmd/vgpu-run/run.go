// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"vernier.dev/vernier/cmd/vgpu-run/internal/options"
	"vernier.dev/vernier/cmd/vgpu-run/internal/report"
	"vernier.dev/vernier/cmd/vgpu-run/internal/samples"
	"vernier.dev/vernier/cmd/vgpu-run/internal/session"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// run runs the command, writes the report and returns the command's exit code.
func run(o options.Options) (int, error) {
	if _, err := os.Lstat(layout.LimitsPath); err == nil {
		return 0, fmt.Errorf("this shell is held to limits already (%s); a share of a share can't be had", layout.LimitsPath)
	}
	library, err := findLibrary(o.Library)
	if err != nil {
		return 0, err
	}
	write := report.ToStderr
	if o.Report != "" {
		if write, err = report.ToFile(o.Report); err != nil {
			return 0, fmt.Errorf("--report: %w", err)
		}
	}
	allowed, err := limits(o)
	if err != nil {
		return 0, err
	}
	o.RunDir = cmp.Or(o.RunDir, session.DefaultDir(os.Geteuid()))
	s, err := session.New(o.RunDir, allowed)
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Close() }()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	ask := func() *samples.Sampler {
		return &samples.Sampler{Child: func() *exec.Cmd { return exec.CommandContext(ctx, self, askNVML) }}
	}
	go session.ShareTime(ctx, o.RunDir, ask().Ask)
	files := s.Files()
	files.Library = library
	code, took, err := supervise(files, o.Command, environment(o, allowed))
	if err != nil {
		return code, err
	}
	usage, err := layout.ReadUsage(files.Counters)
	if err != nil {
		return code, err
	}
	if allowed, err = layout.InForce(files.Limits, files.Pace); err != nil {
		return code, err
	}
	r := report.New(o.Command, code, took, allowed, usage, s.Others())
	if usage.MostProcesses == 0 {
		r.OthersBusy = busy(ask(), allowed, stop)
		r.AddressSpace = addressSpace()
	}
	if o.JSON {
		return code, write(r.JSON)
	}
	return code, write(r.Table)
}

// maxAsk bounds the question below, which a driver may leave unanswered.
const maxAsk = 5 * time.Second

// busy reports whether any process works on the devices, as far as NVML says. giveUp ends
// the sampler's child.
func busy(s *samples.Sampler, allowed layout.Limits, giveUp func()) bool {
	defer time.AfterFunc(maxAsk, giveUp).Stop()
	for _, d := range allowed.Devices {
		processes, err := s.Ask(d.UUID)
		for _, percent := range processes {
			if err == nil && percent > 0 {
				return true
			}
		}
	}
	return false
}

// environment is the command's: with --device, CUDA counts those devices alone.
// That is for its convenience; it is the limits that refuse it the others.
func environment(o options.Options, allowed layout.Limits) []string {
	env := os.Environ()
	if len(o.Devices) == 0 {
		return env
	}
	var uuids []string
	for _, d := range allowed.Devices {
		uuids = append(uuids, d.UUID)
	}
	return append(env, "CUDA_VISIBLE_DEVICES="+strings.Join(uuids, ","))
}

// findLibrary is libvgpu.so as asked for, or beside this program.
func findLibrary(asked string) (string, error) {
	if asked == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		asked = filepath.Join(filepath.Dir(self), "libvgpu.so")
	}
	if _, err := os.Stat(asked); err != nil {
		return "", fmt.Errorf("the limiter: %w; make limiter builds it beside vgpu-run, --library names another place", err)
	}
	return filepath.Abs(asked)
}
