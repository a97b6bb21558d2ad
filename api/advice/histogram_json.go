// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

const (
	version = 1
	// full is the weight of the heaviest bucket in a document. Buckets below 1 are left out.
	full = 10_000
	// maxMemEntries bounds the buckets of memory in a document. The lightest of more are counted in
	// the next higher one, so quantiles can only rise.
	maxMemEntries = 48
	// maxHistogramBytes bounds a document before it is read. The largest that is written has some
	// 700 bytes.
	maxHistogramBytes = 2048
	maxReference      = 100_000 // half-lives: until 2243
	maxWeight         = 1e18    // seconds
)

// document is a histogram as it is stored.
type document struct {
	Version int `json:"v"`
	// Reference in half-lives since 1970.
	Reference int64 `json:"at"`
	// Weight of all buckets in seconds, as of the reference.
	Weight float64 `json:"w"`
	// Runs of neighbouring buckets: the first one's index, then the weight of each, 1 to 10,000.
	Runs [][]int `json:"b"`
}

// entry is a bucket with a weight.
type entry struct {
	bucket int
	weight float64
}

// encode writes at most so many buckets.
func (d *decaying) encode(most int) ([]byte, error) {
	doc := document{Version: version, Reference: d.reference, Runs: [][]int{}}
	list := d.entries(most)
	heaviest := heaviestOf(list)
	for _, e := range list {
		n := int(math.Round(e.weight / heaviest * full))
		if n == 0 {
			continue
		}
		last := len(doc.Runs) - 1
		if last < 0 || doc.Runs[last][0]+len(doc.Runs[last])-1 != e.bucket {
			doc.Runs = append(doc.Runs, []int{e.bucket})
			last++
		}
		doc.Runs[last] = append(doc.Runs[last], n)
	}
	if len(doc.Runs) > 0 {
		doc.Weight = significant(min(d.total(), maxWeight))
	}
	return json.Marshal(doc)
}

// entries are the buckets that have weight enough to be written, the lightest folded upwards until there are
// at most so many.
func (d *decaying) entries(most int) (list []entry) {
	for i, w := range d.weights {
		if w > 0 {
			list = append(list, entry{i, w})
		}
	}
	heaviest := heaviestOf(list)
	list = slices.DeleteFunc(list, func(e entry) bool { return math.Round(e.weight/heaviest*full) == 0 })
	for len(list) > most {
		// The last one has none above it.
		at := 0
		for i := range list[:len(list)-1] {
			if list[i].weight < list[at].weight {
				at = i
			}
		}
		list[at+1].weight += list[at].weight
		list = slices.Delete(list, at, at+1)
	}
	return list
}

func heaviestOf(list []entry) (heaviest float64) {
	for _, e := range list {
		heaviest = max(heaviest, e.weight)
	}
	return heaviest
}

// significant is f with six digits.
func significant(f float64) float64 {
	if f == 0 {
		return 0
	}
	scale := math.Pow(10, 5-math.Floor(math.Log10(f)))
	return math.Round(f*scale) / scale
}

// decode reads a histogram of so many buckets. After an error d is as it was.
func (d *decaying) decode(data []byte, buckets int) error {
	if len(data) > maxHistogramBytes {
		return fmt.Errorf("a histogram has %d bytes, at most %d are read", len(data), maxHistogramBytes)
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("a histogram: %w", err)
	}
	switch {
	case doc.Version != version:
		return fmt.Errorf("v: a histogram of version %d, this reads version %d", doc.Version, version)
	case doc.Reference < 0 || doc.Reference > maxReference:
		return fmt.Errorf("at: %d is not from 0 to %d", doc.Reference, maxReference)
	case !(doc.Weight >= 0 && doc.Weight <= maxWeight):
		return fmt.Errorf("w: %v is not from 0 to %v", doc.Weight, maxWeight)
	}
	next := decaying{reference: doc.Reference}
	for _, run := range doc.Runs {
		if len(run) < 2 || run[0] < len(next.weights) || run[0] >= buckets || len(run)-1 > buckets-run[0] {
			return fmt.Errorf("b: a run does not lie in order within the %d buckets", buckets)
		}
		next.weights = append(next.weights, make([]float64, run[0]-len(next.weights))...)
		for _, n := range run[1:] {
			if n < 1 || n > full {
				return fmt.Errorf("b: the weight %d is not from 1 to %d", n, full)
			}
			next.weights = append(next.weights, float64(n))
		}
	}
	if (len(next.weights) > 0) != (doc.Weight > 0) {
		return fmt.Errorf("w: %v does not go with %d buckets", doc.Weight, len(next.weights))
	}
	if sum := next.total(); sum > 0 {
		for i := range next.weights {
			next.weights[i] *= doc.Weight / sum
		}
	}
	*d = next
	return nil
}

// MarshalJSON writes at most some 650 bytes: weights are rounded to a ten-thousandth of the largest.
func (h CoreHistogram) MarshalJSON() ([]byte, error) { return h.d.encode(coreBuckets) }

// UnmarshalJSON reads what MarshalJSON writes. Anything else is an error that names the field, and
// leaves h as it was.
func (h *CoreHistogram) UnmarshalJSON(data []byte) error { return h.d.decode(data, coreBuckets) }

// MarshalJSON writes at most some 650 bytes: as of CoreHistogram, and of more than 48 buckets the
// lightest are counted in the next higher one.
func (h MemHistogram) MarshalJSON() ([]byte, error) { return h.d.encode(maxMemEntries) }

// UnmarshalJSON reads what MarshalJSON writes, see CoreHistogram.
func (h *MemHistogram) UnmarshalJSON(data []byte) error { return h.d.decode(data, len(memEnds)) }
