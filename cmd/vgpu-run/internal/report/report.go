// SPDX-License-Identifier: Apache-2.0

// Package report owns what vgpu-run says at the end: a table for people, one
// line of JSON for programs. The JSON's names and units don't change; new ones
// may be added.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"vernier.dev/vernier/cmd/vgpu-run/internal/session"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// Report is one run of a command.
type Report struct {
	Command  []string `json:"command"`
	ExitCode int      `json:"exit_code"` // as vgpu-run's own: 128+N for signal N
	WallNS   int64    `json:"wall_ns"`   // from the command's start to its end
	// Processes is the most processes that used CUDA at a time. None, for a
	// command that should have: it didn't load the library.
	Processes int      `json:"processes"`
	Devices   []Device `json:"devices"`
	// OthersKnown: NVML has reported what processes had of the devices that no vgpu-run limits.
	OthersKnown bool `json:"others_known"`
	// OthersBusy: no process of the run used CUDA, and others work on its devices.
	OthersBusy bool `json:"others_busy,omitempty"`
	// AddressSpace is the limit that the run had, in KiB, where no process of it used CUDA.
	AddressSpace uint64 `json:"address_space_kib,omitempty"`
}

// Device is what the command was allowed of one device, and what it used.
type Device struct {
	UUID           string `json:"uuid"`
	CorePercent    uint32 `json:"core_percent"`       // at the end; 0: no quota
	MemoryLimit    uint64 `json:"memory_limit_bytes"` // at the end; also without --mem-mib: the device's
	MemoryUsed     uint64 `json:"memory_used_bytes"`  // by processes that still run
	MemoryPeak     uint64 `json:"memory_peak_bytes"`  // most charged at a time
	MemoryRefusals uint64 `json:"memory_refusals"`    // allocations refused for want of memory
	BusyNS         int64  `json:"busy_ns"`            // device time charged; without a quota only beside commands with one
	ThrottledNS    int64  `json:"throttled_ns"`       // time that launches waited for the quota
	Launches       uint64 `json:"launches"`           // launches charged; as busy_ns
	OthersNS       int64  `json:"others_ns"`          // device time of processes that no vgpu-run limits, as NVML says; only while commands with a quota work
}

// New is the report of a command with these limits and counters, which keep the
// devices in the same order, and beside others.
func New(command []string, code int, wall time.Duration, limits layout.Limits, usage layout.Usage, others session.Others) Report {
	r := Report{Command: command, ExitCode: code, WallNS: wall.Nanoseconds(), Processes: usage.MostProcesses, OthersKnown: others.Known}
	for i, used := range usage.Devices {
		limit := limits.Devices[i]
		r.Devices = append(r.Devices, Device{
			UUID: limit.UUID, CorePercent: limit.Core, MemoryLimit: limit.MemoryBytes,
			MemoryUsed: used.UsedBytes, MemoryPeak: used.PeakBytes, MemoryRefusals: used.MemoryRefusals,
			BusyNS: used.Busy.Nanoseconds(), ThrottledNS: used.Throttled.Nanoseconds(), Launches: used.Launches,
			// NVML's first sample is of a second that may have begun before the command did.
			OthersNS: min(others.Worked[limit.UUID], wall).Nanoseconds(),
		})
	}
	return r
}

// JSON writes the report as one line.
func (r Report) JSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false) // commands are full of > and &
	return e.Encode(r)
}

// Table writes the report for people.
func (r Report) Table(out io.Writer) error {
	wall := time.Duration(r.WallNS)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "vgpu-run: %s: exit code %d after %s\n", strings.Join(r.Command, " "), r.ExitCode, short(wall))
	if r.Processes == 0 {
		fmt.Fprintln(t, "No process used CUDA under the limiter. Static and musl programs don't load it.")
		if r.OthersBusy {
			fmt.Fprintln(t, "WARNING: other processes work on the device. A process that a command asks a service to start isn't limited: tmux, systemd-run, docker, sbatch; see vgpu-run --help.")
		}
		if r.AddressSpace != 0 && r.ExitCode != 0 {
			fmt.Fprintf(t, "ulimit -v is %d KiB: the CUDA driver needs more address space than the GPUs have memory. Try ulimit -v unlimited.\n", r.AddressSpace)
		}
	}
	fmt.Fprintln(t, "DEVICE\tCORE\tDEVICE TIME\tSHARE\tWAITED\tLAUNCHES\tMEMORY\tLIMIT\tREFUSED")
	for _, d := range r.Devices {
		core, busy, share, waited, launches := "-", "-", "-", "-", "-" // not measured without a quota
		if d.throttles() {
			busy, waited = short(time.Duration(d.BusyNS)), short(time.Duration(d.ThrottledNS))
			share = fmt.Sprintf("%.1f%%", 100*float64(d.BusyNS)/float64(max(r.WallNS, 1)))
			launches = fmt.Sprint(d.Launches)
		}
		if d.CorePercent != 0 {
			core = fmt.Sprintf("%d%%", d.CorePercent)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d MiB\t%d MiB\t%d\n", d.UUID, core, busy, share, waited, launches, mib(d.MemoryPeak), d.MemoryLimit>>20, d.MemoryRefusals)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range r.Devices {
		if d.OthersNS != 0 {
			share := 100 * float64(d.OthersNS) / float64(max(r.WallNS, 1))
			fmt.Fprintf(out, "Processes that vgpu-run doesn't limit used %s of %s (%.0f%%). DEVICE TIME may hold a part of it.\n",
				short(time.Duration(d.OthersNS)), d.UUID, share)
		} else if !r.OthersKnown && d.throttles() && d.BusyNS != 0 && wall > tellsWithin {
			fmt.Fprintf(out, "NVML doesn't say whether others used %s: DEVICE TIME holds their time too, if they did.\n", d.UUID)
		}
	}
	return nil
}

// tellsWithin is when NVML has told of others for the first time, if it does.
const tellsWithin = 3 * pace.SampleInterval

// throttles reports whether the command had a compute quota.
func (d Device) throttles() bool { return d.CorePercent != 0 && d.CorePercent != 100 }

// mib rounds up: a byte is more than nothing.
func mib(bytes uint64) uint64 { return (bytes + 1<<20 - 1) >> 20 }

// short is a duration to three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}
