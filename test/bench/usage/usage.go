// SPDX-License-Identifier: Apache-2.0

// Package usage reads a trace of pods on GPUs. It decides nothing.
package usage

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
)

// Interval is the time between two samples of the trace, which each sample stands for.
const Interval = 57 * time.Second

// Point is one sample. Duty is percent of a GPU.
type Point struct {
	At   time.Duration
	Duty float64
	Mem  api.MiB
}

// Pod is the samples of a pod, in the order of time.
type Pod struct {
	Name   string
	Points []Point
}

// Load reads pods.csv.gz of a folder: t_s, pod, duty_percent, memory_mib. The pods are sorted by name. A
// sample without memory has that of the sample before. Errors name file, line and column.
func Load(folder string) ([]Pod, error) {
	path := filepath.Join(folder, "pods.csv.gz")
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	points := map[string][]Point{}
	in := csv.NewReader(plain)
	for {
		fields, err := in.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		line, _ := in.FieldPos(0)
		if line == 1 {
			if !slices.Equal(fields, []string{"t_s", "pod", "duty_percent", "memory_mib"}) {
				return nil, fmt.Errorf("%s: line 1: the columns are %q; want t_s, pod, duty_percent, memory_mib", path, fields)
			}
			continue
		}
		p, has, err := parse(fields)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, line, err)
		}
		before := points[fields[1]]
		if !has && len(before) > 0 {
			p.Mem = before[len(before)-1].Mem
		}
		points[fields[1]] = append(before, p)
	}
	var pods []Pod
	for _, name := range slices.Sorted(maps.Keys(points)) {
		slices.SortStableFunc(points[name], func(a, b Point) int { return cmp.Compare(a.At, b.At) })
		pods = append(pods, Pod{name, points[name]})
	}
	return pods, nil
}

func parse(fields []string) (p Point, hasMem bool, err error) {
	number := func(i int, most float64) float64 {
		n, e := strconv.ParseFloat(fields[i], 64)
		if e != nil || !(n >= 0 && n <= most) {
			err = cmp.Or(err, fmt.Errorf("column %d: %q is not from 0 to %v", i+1, fields[i], most))
		}
		return n
	}
	p.At = time.Duration(number(0, 1e9)) * time.Second
	p.Duty = number(2, 100)
	if hasMem = fields[3] != ""; hasMem {
		p.Mem = api.MiB(number(3, float64(advice.MaxMem)))
	}
	return p, hasMem, err
}
