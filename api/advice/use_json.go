// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
)

// MaxUseBytes bounds the document of a Use before it is read. One that is written has 600 bytes as a
// rule, and 2,000 at most.
const MaxUseBytes = 4096

// useDocument is a Use as it is stored.
type useDocument struct {
	Version int           `json:"v"`
	Core    CoreHistogram `json:"core"`
	Mem     MemHistogram  `json:"mem"`
	// Days have number, peak, need, refusals, observed, limited and throttled. Zeros at the
	// end are left out.
	Days    [][]int64 `json:"days"`
	Since   int64     `json:"since"`
	Last    int64     `json:"last"`
	Samples int64     `json:"n"`
	Pods    int64     `json:"pods"`
	Request Amount    `json:"request"`
}

// fields of a Day in a document.
const dayFields = 7

// MarshalJSON writes the Use in at most 2,000 bytes. Times are rounded to seconds, weights as in
// CoreHistogram.
func (u Use) MarshalJSON() ([]byte, error) {
	doc := useDocument{Version: version, Core: u.Core, Mem: u.Mem, Days: [][]int64{}, Samples: u.Samples, Pods: u.Pods, Request: u.Request}
	if u.Samples > 0 {
		doc.Since, doc.Last = u.Since.Unix(), u.Last.Unix()
	}
	for _, d := range u.Days {
		observed, limited, throttled := int64(math.Ceil(d.Observed)), int64(math.Ceil(d.Limited)), int64(math.Ceil(d.Throttled))
		list := []int64{d.Number, int64(d.Peak), int64(d.Need), d.Refusals, observed, limited, throttled}
		for list[len(list)-1] == 0 && len(list) > 1 {
			list = list[:len(list)-1]
		}
		doc.Days = append(doc.Days, list)
	}
	return json.Marshal(doc)
}

// UnmarshalJSON reads what MarshalJSON writes. Anything else is an error that names the field, and leaves u
// as it was.
func (u *Use) UnmarshalJSON(data []byte) error {
	if len(data) > MaxUseBytes {
		return fmt.Errorf("a use has %d bytes, at most %d are read", len(data), MaxUseBytes)
	}
	var doc useDocument
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	const end = maxReference * int64(halfLife/time.Second)
	switch {
	case doc.Version != version:
		return fmt.Errorf("v: a use of version %d, this reads version %d", doc.Version, version)
	case len(doc.Days) > MaxDays:
		return fmt.Errorf("days: %d are more than %d", len(doc.Days), MaxDays)
	case doc.Since < 0 || doc.Last < doc.Since || doc.Last > end:
		return fmt.Errorf("since, last: %d and %d are no times from 0 to %d in order", doc.Since, doc.Last, end)
	case doc.Samples < 0 || doc.Samples > maxCount || doc.Pods < 0 || doc.Pods > maxCount:
		return fmt.Errorf("n, pods: %d and %d are not from 0 to %d", doc.Samples, doc.Pods, int64(maxCount))
	case doc.Request.Core < 0 || doc.Request.Core > api.WholeGPU:
		return fmt.Errorf("request.core: %d is not from 0 to %d", doc.Request.Core, api.WholeGPU)
	case doc.Request.Mem < 0 || doc.Request.Mem > MaxMem:
		return fmt.Errorf("request.memMiB: %d is not from 0 to %d", doc.Request.Mem, MaxMem)
	}
	// A time to come would take the weight from what others saw.
	if latest := doc.Last / int64(halfLife/time.Second); doc.Core.d.reference > latest || doc.Mem.d.reference > latest {
		return fmt.Errorf("core.at, mem.at: they are after last, %d", doc.Last)
	}
	next := Use{Core: doc.Core, Mem: doc.Mem, Samples: doc.Samples, Pods: doc.Pods, Request: doc.Request}
	if doc.Samples > 0 {
		next.Since, next.Last = time.Unix(doc.Since, 0).UTC(), time.Unix(doc.Last, 0).UTC()
	}
	for i, list := range doc.Days {
		d, err := readDay(list)
		if err == nil && i > 0 && d.Number <= next.Days[i-1].Number {
			err = errors.New("they are not in order")
		}
		if err != nil {
			return fmt.Errorf("days[%d]: %w", i, err)
		}
		next.Days = append(next.Days, d)
	}
	*u = next
	return nil
}

func readDay(list []int64) (Day, error) {
	if len(list) < 1 || len(list) > dayFields {
		return Day{}, fmt.Errorf("%d numbers are not from 1 to %d", len(list), dayFields)
	}
	var all [dayFields]int64
	most := [dayFields]int64{maxReference, int64(MaxMem), int64(MaxMem), maxCount, maxCount, maxCount, maxCount}
	for i, n := range list {
		if n < 0 || n > most[i] {
			return Day{}, fmt.Errorf("number %d: %d is not from 0 to %d", i+1, n, most[i])
		}
		all[i] = n
	}
	d := Day{
		Number: all[0], Peak: api.MiB(all[1]), Need: api.MiB(all[2]), Refusals: all[3],
		Observed: float64(all[4]), Limited: float64(all[5]), Throttled: float64(all[6]),
	}
	if d.Throttled > d.Limited || d.Limited > d.Observed {
		return Day{}, errors.New("the throttled time is not within the limited one, nor that within the observed")
	}
	return d, nil
}
