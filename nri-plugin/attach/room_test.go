// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// slice of a device of 1000 MiB; the ledger books no more for the pod.
func slice(device string, core v1alpha1.Percent, mem v1alpha1.MiB) ledger.Grant {
	return booked(slice0(device, core, mem), core, mem)
}

func instance(uuid string, start, size int32) ledger.Grant {
	g := slice(uuid, 1, 1)
	g.Mode, g.MIG = v1alpha1.ModeMIG, v1alpha1.MIGPlace{Start: start, Size: size}
	return g
}

func shared(uuid string) ledger.Grant {
	g := slice(uuid, 1, 1)
	g.Mode = v1alpha1.ModeMPS
	return g
}

func slice0(device string, core v1alpha1.Percent, mem v1alpha1.MiB) ledger.Grant {
	return ledger.Grant{UUID: device, DeviceMem: 1000, Core: core, Mem: mem, Mode: v1alpha1.ModeLimiter}
}

// booked is a slice of a pod for which the ledger books so much on its device.
func booked(g ledger.Grant, core v1alpha1.Percent, mem v1alpha1.MiB) ledger.Grant {
	g.PodCore, g.PodMem = core, mem
	return g
}

func whole(device string) ledger.Grant {
	g := slice(device, 100, 1000)
	g.Mode = v1alpha1.ModeExclusive
	return g
}

func holder(pod, name, id string, grants ...ledger.Grant) Entry {
	return Entry{Container: mode.Container{Pod: types.UID(pod), Owner: "team/" + pod, Name: name, ID: id, Grants: grants}}
}

// Invariant 1: no containers that are created together hold more of a device than
// it has, whatever the ledger said at the creation of each.
func TestAttachCountsTheDevice(t *testing.T) {
	cases := map[string]struct {
		entered []Entry
		next    Entry
		says    []string // nothing: it is entered
	}{
		"full":                {[]Entry{holder("a", "main", "1", slice("g", 60, 600))}, holder("b", "main", "2", slice("g", 40, 400)), nil},
		"beside MPS' clients": {[]Entry{holder("a", "main", "1", shared("g"))}, holder("b", "main", "2", slice("g", 1, 1)), []string{"pod team/a is on device g in mode mps", "mode limiter can't be beside"}},
		"as one of them":      {[]Entry{holder("a", "main", "1", slice("g", 1, 1))}, holder("b", "main", "2", shared("g")), []string{"mode limiter", "mode mps can't be beside"}},
		"all of them are":     {[]Entry{holder("a", "main", "1", shared("g"))}, holder("b", "main", "2", shared("g")), nil},
		"on another device":   {[]Entry{holder("a", "main", "1", shared("h"))}, holder("b", "main", "2", slice("g", 1, 1)), nil},
		"another device":      {[]Entry{holder("a", "main", "1", slice("h", 60, 600))}, holder("b", "main", "2", slice("g", 60, 600)), nil},
		"too much core":       {[]Entry{holder("a", "main", "1", slice("g", 60, 1))}, holder("b", "main", "2", slice("g", 41, 1)), []string{"device g", "pod team/a (main) holds 60 % and 1 MiB", "41 %", "delete the pod"}},
		"too much memory":     {[]Entry{holder("a", "main", "1", slice("g", 0, 600))}, holder("b", "main", "2", slice("g", 0, 401)), []string{"401 MiB", "600 MiB"}},
		"second device":       {[]Entry{holder("a", "main", "1", slice("h", 60, 600))}, holder("b", "main", "2", slice("g", 60, 600), slice("h", 60, 1)), []string{"device h"}},
		"alone":               {nil, holder("a", "main", "1", slice("g", 1, 1001)), []string{"1001 MiB"}},
		"beside a whole":      {[]Entry{holder("a", "main", "1", whole("g"))}, holder("b", "main", "2", slice("g", 0, 1)), []string{"team/a"}},
		"whole beside":        {[]Entry{holder("a", "main", "1", slice("g", 0, 1))}, holder("b", "main", "2", whole("g")), []string{"team/a"}},
		"own containers":      {[]Entry{holder("a", "one", "1", booked(slice0("g", 60, 1), 120, 2))}, holder("a", "two", "2", booked(slice0("g", 60, 1), 120, 2)), []string{"device g"}},

		"instances side by side": {[]Entry{holder("a", "main", "1", instance("g", 4, 4))}, holder("b", "main", "2", instance("g", 0, 4)), nil},
		"an instance that another has": {[]Entry{holder("a", "main", "1", instance("g", 4, 4))}, holder("b", "main", "2", instance("g", 6, 1)),
			[]string{"container main of pod team/a has the MIG instance at 4"}},
		"an instance that another container of the pod has": {[]Entry{holder("a", "main", "1", instance("g", 6, 1))}, holder("a", "side", "2", instance("g", 6, 1)),
			[]string{"container main"}},
		"an instance whose predecessor's end is not told": {[]Entry{holder("a", "main", "1", instance("g", 6, 1))}, holder("a", "main", "2", instance("g", 6, 1)), nil},
		"the same once more":                              {[]Entry{holder("a", "main", "1", slice("g", 100, 1000))}, holder("a", "main", "1", slice("g", 100, 1000)), nil},
		"restart whose predecessor's end is not told": {
			[]Entry{holder("a", "main", "1", slice("g", 100, 1000))}, holder("a", "main", "2", slice("g", 100, 1000)), nil},
		"restarts of others": {
			[]Entry{holder("a", "main", "1", slice("g", 60, 600)), holder("a", "main", "2", slice("g", 60, 600))},
			holder("b", "main", "3", slice("g", 40, 400)), nil},
		"app after an init container whose end is not told": {
			[]Entry{holder("a", "init", "1", booked(slice0("g", 100, 1000), 100, 1000))},
			holder("a", "main", "2", booked(slice0("g", 60, 600), 100, 1000)), nil},
		"beside an init container that reuses all it has": {
			[]Entry{holder("a", "side", "1", booked(slice0("g", 10, 100), 60, 600)), holder("a", "init", "2", booked(slice0("g", 40, 400), 60, 600))},
			holder("b", "main", "3", slice("g", 51, 1)), []string{"pod team/a (init, side) holds 50 % and 500 MiB"}},
		"beside a pod in both of its phases": {
			[]Entry{holder("a", "init", "1", booked(slice0("g", 80, 800), 80, 800)), holder("a", "main", "2", booked(slice0("g", 60, 600), 80, 800))},
			holder("b", "main", "3", slice("g", 20, 200)), nil},
		"beside what a wrong ledger calls reused": {
			[]Entry{holder("a", "main", "1", booked(slice0("g", 60, 600), 0, 0))}, holder("b", "main", "2", slice("g", 41, 1)), []string{"60 %"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := &ContainerTable{}
			b.Reset(c.entered)
			err := b.Attach(c.next)
			if len(c.says) == 0 {
				must.Do(t, err)
				return
			}
			if err == nil {
				t.Fatal("Invariant 1: the device is handed out twice")
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the refusal does not say %q: %v", part, err)
				}
			}
			if _, entered := b.Get(c.next.ID); entered {
				t.Error("Invariant 6: it was refused and holds its slices")
			}
		})
	}
}

// Invariant 1: of containers that race for the last of a device one wins, and the
// next gets it after its end.
func TestAttachRace(t *testing.T) {
	for range 100 {
		b := &ContainerTable{}
		errs := make([]error, 8)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = b.Attach(holder(fmt.Sprint(i), "main", fmt.Sprint(i), slice("g", 51, 1))) })
		}
		all.Wait()
		won := -1
		for i, err := range errs {
			if err == nil {
				if won >= 0 {
					t.Fatalf("Invariant 1: %d and %d both have 51 %% of the device", won, i)
				}
				won = i
			}
		}
		if won < 0 {
			t.Fatal("nobody got the device")
		}
		b.Detach(fmt.Sprint(won))
		if err := b.Attach(holder("next", "main", "next", slice("g", 100, 1000))); err != nil {
			t.Fatalf("Invariant 6: after its end: %v", err)
		}
	}
}

// What is lent of a container counts for those that have it, until it is taken back; that takes their end.
func TestLend(t *testing.T) {
	b := &ContainerTable{}
	b.Reset([]Entry{holder("owner", "main", "1", slice("g", 50, 900))})
	idle := func(id string, mem v1alpha1.MiB) error {
		return b.Attach(holder("idle"+id, "main", id, slice("g", 0, mem)))
	}
	must.Do(t, b.Lend("1", "g", 600))
	must.Do(t, idle("2", 400))
	if err := idle("3", 1); err == nil || !strings.Contains(err.Error(), "pod team/owner (main) holds 50 % and 600 MiB") {
		t.Errorf("Invariant 1: %v", err)
	}
	must.Do(t, b.Lend("1", "g", 500))
	must.Do(t, b.Lend("1", "g", 600))
	if b.Lend("1", "g", 601) == nil {
		t.Error("Invariant 1: it is taken back while others have it")
	}
	must.Do(t, b.Regrant("1", []ledger.Grant{slice("g", 50, 300)})) // less than is left to it
	must.Do(t, idle("4", 300))
	b.Detach("4")
	must.Do(t, b.Regrant("1", []ledger.Grant{slice("g", 50, 900)}))
	b.Detach("2")
	must.Do(t, b.Lend("1", "g", 900))
	must.Do(t, b.Lend("gone", "g", 900))
}
