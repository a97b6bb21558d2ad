// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxGPUs of a node: policies keep devices as bits of a word.
	maxGPUs = 64
	// maxAmount keeps sums over all pods within an int64.
	maxAmount = 1 << 40
)

// Load reads a workload from two files. Errors name the file, the line and the
// column.
func Load(nodes, pods string) (*Workload, error) {
	w := &Workload{}
	if err := read(nodes, []string{"cpu_milli", "memory_mib", "gpu"}, w.addNode); err != nil {
		return nil, err
	}
	known := map[Class]int{}
	add := func(r row) error { return w.addPod(r, known) }
	if err := read(pods, []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, add); err != nil {
		return nil, err
	}
	if w.Capacity() == 0 {
		return nil, fmt.Errorf("%s: no node has a GPU", nodes)
	}
	if w.Part(w.Pods) == 0 {
		return nil, fmt.Errorf("%s: no pod asks for a GPU", pods)
	}
	return w, nil
}

// row is a line of a file, with the numbers of its columns that must be there.
type row struct {
	head, fields []string
	numbers      []int64
}

// text of a column, empty when the file has none of that name.
func (r *row) text(column string) string {
	if i := slices.Index(r.head, column); i >= 0 {
		return strings.TrimSpace(r.fields[i])
	}
	return ""
}

func (r *row) number(column string) (int64, error) {
	text := r.text(column)
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0 || n != math.Trunc(n) {
		return 0, fmt.Errorf("column %s: %q is not a count", column, text)
	}
	if n > maxAmount {
		return 0, fmt.Errorf("column %s: %s is more than %d", column, text, maxAmount)
	}
	return int64(n), nil
}

func (w *Workload) addNode(r row) error {
	if r.numbers[2] > maxGPUs {
		return fmt.Errorf("column gpu: %d is more than %d", r.numbers[2], maxGPUs)
	}
	w.Nodes = append(w.Nodes, Node{Name: r.text("sn"), CPU: r.numbers[0], Mem: r.numbers[1], GPUs: int(r.numbers[2]), Model: r.text("model")})
	return nil
}

func (w *Workload) addPod(r row, known map[Class]int) error {
	gpus, milli := r.numbers[2], r.numbers[3]
	switch {
	case milli > Whole:
		return fmt.Errorf("column gpu_milli: %d is more than a device's %d; ask for more devices with num_gpu", milli, Whole)
	case (gpus == 0) != (milli == 0):
		return fmt.Errorf("column gpu_milli: %d of each of %d devices is no request; both are zero or neither", milli, gpus)
	}
	c := Class{CPU: r.numbers[0], Mem: r.numbers[1], GPUs: int(gpus), Milli: int(milli), Spec: models(r.text("gpu_spec"))}
	id, ok := known[c]
	if !ok {
		id = len(w.Classes)
		known[c] = id
		w.Classes = append(w.Classes, c)
	}
	w.Pods = append(w.Pods, id)
	return nil
}

// models is the list without the blanks around each of them.
func models(spec string) string {
	list := strings.Split(spec, "|")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return strings.Join(list, "|")
}

// read takes the lines of a file, which must have counts in the columns.
func read(path string, columns []string, take func(row) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := csv.NewReader(f)
	in.FieldsPerRecord = -1
	head, err := in.Read()
	if err != nil && err != io.EOF {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i := range head {
		head[i] = strings.TrimSpace(strings.TrimPrefix(head[i], "\ufeff"))
	}
	for _, c := range columns {
		if !slices.Contains(head, c) {
			return fmt.Errorf("%s: line 1: no column %s; it has %q", path, c, head)
		}
	}
	for i, c := range head {
		if c != "" && slices.Contains(head[:i], c) {
			return fmt.Errorf("%s: line 1: two columns are called %s", path, c)
		}
	}
	for {
		fields, err := in.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			// It names the line and the column itself.
			return fmt.Errorf("%s: %w", path, err)
		}
		line, _ := in.FieldPos(0)
		if err := takeRow(row{head: head, fields: fields}, columns, take); err != nil {
			return fmt.Errorf("%s: line %d: %w", path, line, err)
		}
	}
}

func takeRow(r row, columns []string, take func(row) error) error {
	if len(r.fields) < len(r.head) {
		return fmt.Errorf("column %s: the line ends before it", r.head[len(r.fields)])
	}
	if len(r.fields) > len(r.head) {
		return fmt.Errorf("column %d: the first line names only %d", len(r.head)+1, len(r.head))
	}
	for _, c := range columns {
		n, err := r.number(c)
		if err != nil {
			return err
		}
		r.numbers = append(r.numbers, n)
	}
	return take(r)
}
