// SPDX-License-Identifier: Apache-2.0

// Package trace reads and makes GPU-sharing workloads in the CSV format of the
// public cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata).
//
// It owns the format and the order of arrivals. It never places anything. The
// trace has no column for device memory: a pod is taken to need the same share of
// a device's memory as of its compute.
package trace

import (
	"math/rand"
	"strconv"
	"strings"
)

// Whole is a whole device in the trace's unit.
const Whole = 1000

// Node is a machine. CPU is in thousandths of a core, Mem in MiB.
type Node struct {
	Name     string
	CPU, Mem int64
	GPUs     int
	Model    string
}

// Class is what a pod asks for: Milli thousandths on each of GPUs devices. Spec
// lists the models that it may use, separated by |; empty allows all.
type Class struct {
	CPU, Mem    int64
	GPUs, Milli int
	Spec        string
}

// Demand is what the class asks for over all devices, in thousandths of one.
func (c *Class) Demand() int64 { return int64(c.GPUs) * int64(c.Milli) }

// Allows tells whether spec admits the model.
func Allows(spec, model string) bool {
	named := false
	for m := range strings.SplitSeq(spec, "|") {
		if m == model && m != "" {
			return true
		}
		named = named || m != ""
	}
	return !named
}

// Kind names the class for tables of results.
func (c *Class) Kind() string {
	switch {
	case c.GPUs == 0:
		return "cpu"
	case c.GPUs == 1 && c.Milli < Whole:
		return "shared"
	default:
		return strconv.Itoa(c.GPUs) + "-gpu"
	}
}

// Workload is a cluster and the pods that come to it.
type Workload struct {
	Nodes   []Node
	Classes []Class
	// Pods are indices of Classes, in the order of the file.
	Pods []int
}

// Capacity of all devices, in thousandths of one.
func (w *Workload) Capacity() int64 {
	var sum int64
	for i := range w.Nodes {
		sum += int64(w.Nodes[i].GPUs) * Whole
	}
	return sum
}

// Part is what the pods of these classes ask for, as a part of all devices.
func (w *Workload) Part(classes []int) float64 {
	var sum int64
	for _, c := range classes {
		sum += w.Classes[c].Demand()
	}
	return float64(sum) / float64(w.Capacity())
}

// Arrivals are the pods in random order, followed by draws from them with
// replacement, until their demand reaches upTo times the cluster's capacity.
func (w *Workload) Arrivals(seed int64, upTo float64) []int {
	r := rand.New(rand.NewSource(seed))
	order := append([]int(nil), w.Pods...)
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	var got int64
	for _, class := range order {
		got += w.Classes[class].Demand()
	}
	for want := int64(upTo * float64(w.Capacity())); got < want; {
		class := w.Pods[r.Intn(len(w.Pods))]
		order = append(order, class)
		got += w.Classes[class].Demand()
	}
	return w.Until(order, upTo)
}

// Until are the arrivals up to the one that reaches part of the capacity.
func (w *Workload) Until(arrivals []int, part float64) []int {
	want := int64(part * float64(w.Capacity()))
	var got int64
	for i, class := range arrivals {
		if got += w.Classes[class].Demand(); got >= want {
			return arrivals[:i+1]
		}
	}
	return arrivals
}
