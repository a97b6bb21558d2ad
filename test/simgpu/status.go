// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"strconv"
	"strings"
)

// Status is the state of the machine at one moment.
type Status struct {
	Driver  string
	NowNS   uint64 // CLOCK_MONOTONIC
	Devices []Device
	Clients []Client
	Limits  []Limit
}

// Device is a GPU. Bytes are what clients hold; BusyNS is the device time used
// since the state file was made.
type Device struct {
	Index       int
	Model, UUID string
	Minor, NUMA int
	TotalMiB    uint64
	ReservedMiB uint64
	UsedBytes   uint64
	BusyNS      uint64
	Lost, MIG   bool
}

// Client is one process on one device, with its PID in the caller's namespace
// (-1 outside it), its memory, and its work queued and done in nanoseconds of
// device time.
type Client struct {
	PID, Device      int
	UsedBytes        uint64
	QueuedNS, DoneNS uint64
	Cgroup           string
	MPS              string // "server", "client", or "-" for neither
}

// Limit is a cgroup's memory limit on one device, in bytes.
type Limit struct {
	Device           int
	Soft, Hard, Used uint64
	Cgroup           string
}

// Newest reports whether the driver has every symbol that the simulation knows.
func (s *Status) Newest() bool {
	branch, _, _ := strings.Cut(s.Driver, ".")
	n, err := strconv.Atoi(branch)
	return err == nil && n >= 615
}

// Status reads the state and reclaims what dead processes held.
func (s *Sim) Status() (*Status, error) {
	text, err := s.ctl("status")
	if err != nil {
		return nil, err
	}
	st := &Status{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		f := fields{}
		for _, pair := range strings.Fields(rest) {
			if key, value, ok := strings.Cut(pair, "="); ok {
				f[key] = value
			}
		}
		switch word {
		case "driver":
			st.Driver, st.NowNS = f["version"], f.number("now_ns")
		case "device":
			st.Devices = append(st.Devices, Device{
				Index: f.int("index"), Model: f["model"], UUID: f["uuid"], Minor: f.int("minor"),
				NUMA: f.int("numa"), TotalMiB: f.number("total_mib"), ReservedMiB: f.number("reserved_mib"),
				UsedBytes: f.number("used_bytes"), BusyNS: f.number("busy_ns"),
				Lost: f["lost"] == "1", MIG: f["mig"] == "1",
			})
		case "client":
			st.Clients = append(st.Clients, Client{
				PID: f.int("pid"), Device: f.int("device"), UsedBytes: f.number("used_bytes"),
				QueuedNS: f.number("queued_ns"), DoneNS: f.number("done_ns"), Cgroup: f["cgroup"], MPS: f["mps"],
			})
		case "limit":
			st.Limits = append(st.Limits, Limit{
				Device: f.int("device"), Soft: f.number("soft"), Hard: f.number("hard"),
				Used: f.number("used"), Cgroup: f["cgroup"],
			})
		}
		if f[bad] != "" {
			return nil, fmt.Errorf("simgpuctl status: %s is no number in %q", f[bad], line)
		}
	}
	return st, nil
}

// fields are the key=value pairs of a line; bad remembers one that was no number.
type fields map[string]string

const bad = " "

func (f fields) number(key string) uint64 {
	n, err := strconv.ParseUint(f[key], 10, 64)
	if err != nil {
		f[bad] = key
	}
	return n
}

func (f fields) int(key string) int {
	n, err := strconv.Atoi(f[key])
	if err != nil {
		f[bad] = key
	}
	return n
}
