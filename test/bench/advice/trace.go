// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
)

// interval is the time between two samples of the trace, which each sample stands for.
const interval = 57 * time.Second

// point is one sample. Duty is percent of a GPU.
type point struct {
	at   time.Duration
	duty float64
	mem  api.MiB
}

// pod is the samples of a pod, in the order of time, before the middle of the trace and after it.
type pod struct {
	name          string
	first, second []point
}

// load reads a trace. A sample without memory has that of the sample before. Errors name file, line and
// column.
func load(path string) ([]*pod, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	points := map[string][]point{}
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
			p.mem = before[len(before)-1].mem
		}
		points[fields[1]] = append(before, p)
	}
	return halve(points), nil
}

func parse(fields []string) (p point, hasMem bool, err error) {
	number := func(i int, most float64) float64 {
		n, e := strconv.ParseFloat(fields[i], 64)
		if e != nil || !(n >= 0 && n <= most) {
			err = cmp.Or(err, fmt.Errorf("column %d: %q is not from 0 to %v", i+1, fields[i], most))
		}
		return n
	}
	p.at = time.Duration(number(0, 1e9)) * time.Second
	p.duty = number(2, 100)
	if hasMem = fields[3] != ""; hasMem {
		p.mem = api.MiB(number(3, float64(advice.MaxMem)))
	}
	return p, hasMem, err
}

// halve sorts the pods by name, and their samples by half.
func halve(points map[string][]point) (pods []*pod) {
	end := time.Duration(0)
	for _, list := range points {
		slices.SortStableFunc(list, func(a, b point) int { return cmp.Compare(a.at, b.at) })
		end = max(end, list[len(list)-1].at)
	}
	for _, name := range slices.Sorted(maps.Keys(points)) {
		list := points[name]
		middle, _ := slices.BinarySearchFunc(list, end/2, func(p point, at time.Duration) int { return cmp.Compare(p.at, at) })
		pods = append(pods, &pod{name, list[:middle], list[middle:]})
	}
	return pods
}
