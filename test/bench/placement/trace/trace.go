// SPDX-License-Identifier: Apache-2.0

// Package trace reads and makes GPU-sharing workloads in the CSV format of the
// public cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata).
//
// It owns the format and the order of arrivals. It never places anything. The
// trace has no column for device memory: a pod is taken to need the same share of
// a device's memory as of its compute.
package trace

import (
	"encoding/csv"
	"fmt"
	"io"
	"math/rand"
	"os"
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

// Load reads a workload from two files.
func Load(nodes, pods string) (*Workload, error) {
	w := &Workload{}
	if err := read(nodes, w.addNode); err != nil {
		return nil, err
	}
	known := map[Class]int{}
	if err := read(pods, func(r row) error { return w.addPod(r, known) }); err != nil {
		return nil, err
	}
	if w.Capacity() == 0 {
		return nil, fmt.Errorf("%s: no node has a GPU", nodes)
	}
	demand := int64(0)
	for _, c := range w.Pods {
		demand += w.Classes[c].Demand()
	}
	if demand == 0 {
		return nil, fmt.Errorf("%s: no pod asks for a GPU", pods)
	}
	return w, nil
}

type row struct {
	columns map[string]int
	fields  []string
}

func (r row) text(column string) string {
	if i, ok := r.columns[column]; ok {
		return r.fields[i]
	}
	return ""
}

func (r row) number(column string) (int64, error) {
	n, err := strconv.ParseInt(r.text(column), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("column %s: %q is not a count", column, r.text(column))
	}
	return n, nil
}

func (r row) numbers(columns ...string) ([]int64, error) {
	out := make([]int64, len(columns))
	for i, c := range columns {
		n, err := r.number(c)
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

func (w *Workload) addNode(r row) error {
	n, err := r.numbers("cpu_milli", "memory_mib", "gpu")
	if err == nil {
		w.Nodes = append(w.Nodes, Node{Name: r.text("sn"), CPU: n[0], Mem: n[1], GPUs: int(n[2]), Model: r.text("model")})
	}
	return err
}

func (w *Workload) addPod(r row, known map[Class]int) error {
	n, err := r.numbers("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
	if err != nil {
		return err
	}
	c := Class{CPU: n[0], Mem: n[1], GPUs: int(n[2]), Milli: int(n[3]), Spec: r.text("gpu_spec")}
	if c.Milli > Whole || (c.GPUs == 0) != (c.Milli == 0) {
		return fmt.Errorf("num_gpu %d with gpu_milli %d is no request", c.GPUs, c.Milli)
	}
	id, ok := known[c]
	if !ok {
		id = len(w.Classes)
		known[c] = id
		w.Classes = append(w.Classes, c)
	}
	w.Pods = append(w.Pods, id)
	return nil
}

func read(path string, take func(row) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := csv.NewReader(f)
	head, err := r.Read()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	columns := map[string]int{}
	for i, name := range head {
		columns[name] = i
	}
	for line := 2; ; line++ {
		fields, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = take(row{columns, fields})
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", path, line, err)
		}
	}
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
