// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// NodeTable shows nodes.
func NodeTable(nodes []model.Node, wide bool) Table {
	t := Table{header: []string{"NAME", "READY", "GPUS", "MODELS", "CORE(%)", "MEM(MiB)", "SLICES", "WAITING-RELEASE",
		"DRIVER", "CUDA", "DRIVER-MEMORY-LIMITS", "MPS", "TOPOLOGY", "GDR", "NOTE"}}
	for _, n := range nodes {
		t.rows = append(t.rows, []string{
			n.Name, string(n.Ready), strconv.Itoa(n.GPUs), strings.Join(n.Models, ","),
			ratio(n.Core.Granted, n.Core.Total), ratio(n.Mem.Granted, n.Mem.Total),
			strconv.Itoa(n.Slices), strconv.Itoa(n.WaitingRelease),
			n.Driver.Version, n.Driver.CUDA,
			able(n.Driver.MemoryLimits, n.Driver.MemoryLimitsReason), able(n.Driver.MPS, n.Driver.MPSReason),
			topologyText(n.Topology), string(n.Driver.GDR), n.Note,
		})
	}
	return t.narrow(wide, "DRIVER")
}

// topologyText is the sets of devices of each level, the nearest level first.
func topologyText(t *v1alpha1.TopologyStatus) string {
	if t == nil {
		return ""
	}
	var parts []string
	for _, level := range []struct {
		name v1alpha1.TopologyLevel
		sets []v1alpha1.DeviceSet
	}{{v1alpha1.TopologyNVLink, t.NVLink}, {v1alpha1.TopologyPCIe, t.PCIe}, {v1alpha1.TopologyNUMA, t.NUMA}} {
		if len(level.sets) == 0 {
			continue
		}
		text := string(level.name)
		for _, s := range level.sets {
			text += " " + string(s)
		}
		parts = append(parts, text)
	}
	if t.Fabric != "" {
		parts = append(parts, "fabric "+t.Fabric)
	}
	return strings.Join(parts, "; ")
}

// able reports whether, and if not, why.
func able(yes bool, why string) string {
	switch {
	case yes:
		return "yes"
	case why != "":
		return "no: " + why
	}
	return "no"
}

// DeviceTable shows devices.
func DeviceTable(devices []model.Device, wide bool) Table {
	t := Table{header: []string{"NODE", "IDX", "UUID", "MODEL", "CORE(%)", "MEM(MiB)", "SLICES", "MIG", "HEALTH",
		"PCI", "NUMA", "NICS", "REASON"}}
	for _, d := range devices {
		uuid := d.UUID
		if !wide {
			uuid = shortUUID(uuid)
		}
		t.rows = append(t.rows, []string{
			d.Node, index(d.Index), uuid, d.Model,
			ratio(d.Core.Granted, d.Core.Total), ratio(d.Mem.Granted, d.Mem.Total),
			strconv.Itoa(d.Slices), string(d.MIG), d.State(),
			d.PCI, index(d.NUMA), strings.Join(d.NICs, ","), d.Why(),
		})
	}
	return t.narrow(wide, "PCI")
}

// DeviceBars shows devices as bars, for the eye.
func DeviceBars(devices []model.Device) Table {
	t := Table{header: []string{"NODE", "IDX", "MODEL", "CORE(%)", "MEM(MiB)", "SLICES", "HEALTH"}}
	for _, d := range devices {
		t.rows = append(t.rows, []string{
			d.Node, index(d.Index), d.Model,
			bar(d.Core.Granted, d.Core.Total) + " " + ratio(d.Core.Granted, d.Core.Total),
			bar(d.Mem.Granted, d.Mem.Total) + " " + ratio(d.Mem.Granted, d.Mem.Total),
			strconv.Itoa(d.Slices), d.State(),
		})
	}
	return t
}

// SliceTable shows slices.
func SliceTable(all []model.Slice, now time.Time, wide bool) Table {
	t := Table{header: []string{"NAMESPACE", "POD", "CONTAINER", "NODE/GPU", "CORE(%)", "MEM(MiB)", "GUARANTEE", "STATE", "AGE",
		"IDLE", "MODE", "UUID", "POD-UID", "REUSE-CORE(%)", "REUSE-MEM(MiB)", "NOTE"}}
	for _, s := range all {
		guarantee, age, idle := string(s.MemoryGuarantee), "", ""
		if s.ComputeGuarantee != s.MemoryGuarantee {
			guarantee = shown(guarantee) + "/" + shown(string(s.ComputeGuarantee))
		}
		if s.Since != nil {
			age = duration.HumanDuration(now.Sub(s.Since.Time))
		}
		if s.IdleSince != nil {
			idle = duration.HumanDuration(now.Sub(s.IdleSince.Time))
		}
		t.rows = append(t.rows, []string{
			s.Namespace, s.Pod, s.Container, s.Node + "/" + cmp.Or(index(s.GPU), shortUUID(s.UUID)), number(s.Core), number(s.Mem), guarantee, s.State, age,
			idle, string(s.Mode), s.UUID, string(s.PodUID), number(s.ReuseCore), number(s.ReuseMem), s.Note,
		})
	}
	return t.narrow(wide, "IDLE")
}

// Ago is how long before now something was, for people.
func Ago(now time.Time, at metav1.Time) string {
	if at.IsZero() {
		return "not known"
	}
	return duration.HumanDuration(now.Sub(at.Time)) + " ago"
}

// WaitingTable shows waiting pods.
func WaitingTable(pods []model.WaitingPod, now time.Time, wide bool) Table {
	t := Table{header: []string{"NAMESPACE", "POD", "NEEDS", "OTHER-GATES", "AGE", "REASON", "SEEN", "POD-UID"}}
	for _, p := range pods {
		ago := ""
		switch {
		case p.Reserved != nil:
			ago = Ago(now, p.Reserved.Seen)
		case p.Now != "":
			ago = "now"
		case p.Reason != nil:
			ago = Ago(now, p.Reason.Seen)
		}
		t.rows = append(t.rows, []string{
			p.Namespace, p.Pod, needsText(p), strings.Join(p.OtherGates, ","),
			strings.TrimSuffix(Ago(now, p.Created), " ago"), reasonText(p, now), ago, string(p.PodUID),
		})
	}
	return t.narrow(wide, "SEEN")
}

func reasonText(p model.WaitingPod, now time.Time) string {
	switch {
	case p.Error != "":
		return p.Error
	case p.Reserved != nil:
		return p.Reserved.At(now)
	case p.Now != "":
		return p.Now
	case p.Reason != nil:
		return p.Reason.Message
	case len(p.OtherGates) > 0:
		return "Vernier waits until the other gates are removed"
	default:
		return "no recent event from the allocator"
	}
}

func needsText(p model.WaitingPod) string {
	var parts []string
	for _, n := range p.Needs {
		var amounts []string
		if n.Core > 0 {
			amounts = append(amounts, number(n.Core)+"% core")
		}
		if n.MemMiB > 0 {
			amounts = append(amounts, number(n.MemMiB)+" MiB")
		} else {
			amounts = append(amounts, number(n.MemPercent)+"% mem")
		}
		text := strings.Join(amounts, " + ")
		if n.GPUs > 1 {
			text = fmt.Sprintf("%d GPUs x (%s)", n.GPUs, text)
		}
		if n.Class != "" {
			text = n.Class + ", " + text
		}
		parts = append(parts, n.Container+": "+text)
	}
	return strings.Join(parts, "; ")
}

func ratio[T v1alpha1.Percent | v1alpha1.MiB](granted, total T) string {
	return number(granted) + "/" + number(total)
}

func number[T v1alpha1.Percent | v1alpha1.MiB](n T) string {
	return strconv.FormatInt(int64(n), 10)
}

func index(i *int32) string {
	if i == nil {
		return ""
	}
	return strconv.Itoa(int(*i))
}

// shortUUID keeps the first group, which tells the devices of a node apart.
func shortUUID(uuid string) string {
	kind, rest, _ := strings.Cut(uuid, "-")
	first, _, _ := strings.Cut(rest, "-")
	if first == "" {
		return uuid
	}
	return kind + "-" + first
}

const barWidth = 5

// bar rounds down, except that what is in use is never shown as empty.
func bar[T v1alpha1.Percent | v1alpha1.MiB](granted, total T) string {
	full := 0
	if total > 0 {
		full = int(min(barWidth, granted*barWidth/total))
	}
	if granted > 0 {
		full = max(full, 1)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}
