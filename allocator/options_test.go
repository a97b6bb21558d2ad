// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"flag"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/test/must"
)

// A flag that cannot be is refused with its name and with what may stand there.
func TestOptionsFlags(t *testing.T) {
	moves := preemption.Defragment{MaxPods: 3, PerHour: 6}
	for args, tt := range map[string]struct {
		want Options
		says []string
	}{
		"":                                     {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, time.Hour, 30 * time.Minute, moves, nil, 0}, nil},
		"--preemption=LowerPriority":           {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, time.Hour, 30 * time.Minute, moves, nil, 0}, nil},
		"--preemption=Never --reserve-after=0": {Options{":8082", preemption.Never, nil, 0, time.Hour, 30 * time.Minute, moves, nil, 0}, nil},
		"--reserve-after=1h30m":                {Options{":8082", preemption.LowerPriority, nil, 90 * time.Minute, time.Hour, 30 * time.Minute, moves, nil, 0}, nil},
		"--priority-classes=production,*":      {Options{":8082", preemption.LowerPriority, classNames{"production", "*"}, 10 * time.Minute, time.Hour, 30 * time.Minute, moves, nil, 0}, nil},
		"--priority-classes=Production":        {says: []string{"-priority-classes", "names with commas", "*"}},
		"--priority-classes=":                  {says: []string{"-priority-classes"}},
		"--lookahead=24h":                      {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, 24 * time.Hour, 30 * time.Minute, moves, nil, 0}, nil},
		"--idle-after=0s":                      {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, time.Hour, 0, moves, nil, 0}, nil},
		"--idle-after=-1m":                     {says: []string{"-idle-after", "0s"}},
		"--defragment-after=15m --defragment-max-pods=1 --defragment-per-hour=2": {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, time.Hour, 30 * time.Minute,
			preemption.Defragment{After: 15 * time.Minute, MaxPods: 1, PerHour: 2}, nil, 0}, nil},
		"--overcommit-core=pool:150 --overcommit-core=:120": {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, time.Hour, 30 * time.Minute, moves,
			overcommitCore{{must.Get(labels.Parse("pool"))(t), 150}, {must.Get(labels.Parse(""))(t), 120}}, 0}, nil},
		"--overcommit-core=pool":      {says: []string{"-overcommit-core", "pool=inference:150"}},
		"--overcommit-core=a=b:100":   {says: []string{"101 to 1000"}},
		"--overcommit-core=a=b=c:150": {says: []string{"selector"}},
		"--defragment-after=-15m":     {says: []string{"-defragment-after", "0s"}},
		"--scale-up-max-gpus=64":      {Options{":8082", preemption.LowerPriority, nil, 10 * time.Minute, time.Hour, 30 * time.Minute, moves, nil, 64}, nil},
		"--scale-up-max-gpus=-1":      {says: []string{"-scale-up-max-gpus", "0 to ask for none"}},
		"--lookahead=10s":             {says: []string{"-lookahead", "a minute or more"}},
		"--lookahead=never":           {says: []string{"-lookahead", "such as 1h"}},
		"--preemption=never":          {says: []string{"-preemption", "give LowerPriority or Never"}},
		"--preemption=":               {says: []string{"-preemption", "give LowerPriority or Never"}},
		"--reserve-after=10":          {says: []string{"-reserve-after", "such as 10m"}},
		"--reserve-after=-5m":         {says: []string{"-reserve-after", "0s"}},
	} {
		var o Options
		f := flag.NewFlagSet("vernier-allocator", flag.ContinueOnError)
		f.SetOutput(io.Discard)
		o.AddFlags(f)
		err := f.Parse(strings.Fields(args))
		if err == nil && !reflect.DeepEqual(o, tt.want) || (err == nil) != (tt.says == nil) {
			t.Errorf("%s: %+v, %v", args, o, err)
		}
		for _, says := range tt.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: no word of %q: %v", args, says, err)
			}
		}
	}
}
