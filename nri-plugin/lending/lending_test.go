// SPDX-License-Identifier: Apache-2.0

package lending

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/tide"
)

func TestDecide(t *testing.T) {
	owner := func(id string, limit, ready, used, peak v1alpha1.MiB) Owner {
		return Owner{ID: id, Limit: limit, Ready: ready, Used: used, Peak: peak, Settled: true}
	}
	with := func(o Owner, edit func(*Owner)) Owner {
		edit(&o)
		return o
	}
	young := func(o *Owner) { o.Settled = false }
	wants := func(mem v1alpha1.MiB) func(*Owner) { return func(o *Owner) { o.Wanted = mem } }
	idle := func(pod string, mem v1alpha1.MiB, after time.Duration) tide.Slice {
		return tide.Slice{Pod: types.UID(pod), Mem: mem, Since: time.Unix(1000, 0).Add(after)}
	}
	two := []tide.Slice{idle("old", 2000, 0), idle("young", 2000, time.Hour)}
	for name, tt := range map[string]struct {
		device Device
		want   string // lendable, what each owner lends, who ends
	}{
		"nobody needs it":       {Device{Mem: 10000, Granted: 10000, Owners: []Owner{owner("a", 9000, 9000, 1000, 2000)}}, "6100 map[a:0] []"},
		"the margin at least":   {Device{Mem: 10000, Granted: 2000, Owners: []Owner{owner("a", 2000, 2000, 1000, 500)}}, "488 map[a:0] []"},
		"all is used":           {Device{Mem: 10000, Granted: 9000, Owners: []Owner{owner("a", 9000, 9000, 8500, 2000)}}, "0 map[a:0] []"},
		"it waits":              {Device{Mem: 10000, Granted: 9000, Owners: []Owner{with(owner("a", 9000, 9000, 1000, 2000), wants(3000))}}, "5100 map[a:0] []"},
		"not known for long":    {Device{Mem: 10000, Granted: 9000, Owners: []Owner{with(owner("a", 9000, 9000, 1000, 2000), young)}}, "0 map[a:0] []"},
		"what is needed":        {Device{Mem: 10000, Granted: 12000, Idle: two, Owners: []Owner{owner("a", 8000, 8000, 1000, 2000)}}, "5200 map[a:2000] []"},
		"of one first":          {Device{Mem: 10000, Granted: 13000, Idle: two, Owners: []Owner{owner("a", 5000, 5000, 1000, 1000), owner("b", 4000, 4000, 500, 500)}}, "6476 map[a:3000 b:0] []"},
		"who has lent goes on":  {Device{Mem: 10000, Granted: 13000, Idle: two, Owners: []Owner{owner("a", 5000, 5000, 1000, 1000), owner("b", 4000, 3000, 500, 500)}}, "6476 map[a:12 b:2988] []"},
		"after a restart":       {Device{Mem: 10000, Granted: 12000, Idle: two, Owners: []Owner{with(owner("a", 8000, 6000, 1000, 0), young)}}, "2000 map[a:2000] []"},
		"within half a margin":  {Device{Mem: 10000, Granted: 12000, Idle: two, Owners: []Owner{owner("a", 8000, 6000, 5600, 5600)}}, "2000 map[a:2000] []"},
		"beyond":                {Device{Mem: 10000, Granted: 12000, Idle: two, Owners: []Owner{owner("a", 8000, 6000, 5601, 5601)}}, "0 map[a:0] [young]"},
		"it wants what is lent": {Device{Mem: 10000, Granted: 13000, Idle: two, Owners: []Owner{with(owner("a", 9000, 6000, 1000, 1000), wants(6001))}}, "0 map[a:0] [young old]"},
		"one leaves already":    {Device{Mem: 10000, Granted: 12000, Leaving: 2000, Idle: two[:1], Owners: []Owner{with(owner("a", 8000, 6000, 1000, 1000), wants(6001))}}, "0 map[a:0] []"},
		"another can lend it":   {Device{Mem: 10000, Granted: 12000, Idle: two, Owners: []Owner{owner("b", 4000, 4000, 500, 500), with(owner("a", 4000, 2000, 1000, 1000), wants(2001))}}, "2988 map[a:0 b:2000] []"},
		"off":                   {Device{Mem: 10000, Granted: 12000, Idle: two, Off: true, Owners: []Owner{owner("a", 8000, 6000, 1000, 1000)}}, "0 map[] [young]"},
		"its owner has ended":   {Device{Mem: 10000, Granted: 10500, Idle: two}, "0 map[] [young]"},
	} {
		got := Decide(tt.device)
		if text := fmt.Sprint(got.Lendable, got.Lend, got.End); text != tt.want {
			t.Errorf("%s: %s, want %s", name, text, tt.want)
		}
	}
}
