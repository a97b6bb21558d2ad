// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
)

// Room is how many pods alike would find devices now, by the ledgers. Node selectors, taints, CPU
// and what is reserved for others are not looked at. It names no other pod.
type Room struct {
	// Class is set where it is of pods that ask for one unit of a GPUClass.
	Class string
	// Pods are at most MaxPods.
	Pods int
	// Cause and Why are set where there is room for none.
	Cause cause.Cause
	Why   string
}

const (
	// MaxPods is how many pods are counted.
	MaxPods = 100
	// patience bounds the look at all nodes, and so about a fifth of what an answer takes.
	patience = 100 * time.Millisecond
)

// String is the warning that a dry run is answered.
func (r Room) String() string {
	many, of := strconv.Itoa(r.Pods), "pods like this one"
	if r.Pods == MaxPods {
		many += " or more"
	}
	switch {
	case r.Class != "":
		of = "units of GPUClass " + r.Class
	case r.Pods == 1:
		of = "pod like this one"
	}
	if r.Pods == 0 {
		return fmt.Sprintf("%sroom now for no %s: %s: %s", warning, of, r.Cause, r.Why)
	}
	return fmt.Sprintf("%sroom now for %s %s", warning, many, of)
}

// warning is what the warnings about room begin with.
const warning = "vernier.dev: "

// NotLooked is the warning where the ledgers are not read yet, or the look for another pod is under way.
const NotLooked = warning + "room was not looked for now: try again"

var room = regexp.MustCompile(`(?s)^` + regexp.QuoteMeta(warning) + `room now for (no|[0-9]{1,3})(?: or more)? (?:pods? like this one|units of GPUClass ([^ :]+))(?:: ([A-Za-z]+): (.*))?$`)

// ParseRoom reads what String writes; false for another text.
func ParseRoom(text string) (Room, bool) {
	m := room.FindStringSubmatch(text)
	if m == nil {
		return Room{}, false
	}
	pods, err := strconv.Atoi(m[1])
	return Room{Class: m[2], Pods: pods, Cause: cause.Cause(m[3]), Why: m[4]}, (err != nil) == (m[3] != "")
}

// RoomFor is the room for pods of the demand; false before the ledgers are read, and while room is looked for
// another.
func (f *Fleet) RoomFor(demand *placement.Demand) (Room, bool) {
	if !f.begin() {
		return Room{}, false
	}
	defer f.looking.Unlock()
	rooms, withheld := f.rooms()
	return f.roomFor(demand, rooms, withheld), true
}

// RoomOfClasses is the room for one unit of each class, by name; false as in RoomFor.
func (f *Fleet) RoomOfClasses(known *classes.Set) ([]Room, bool) {
	if !f.begin() {
		return nil, false
	}
	defer f.looking.Unlock()
	var all []Room
	rooms, withheld := f.rooms()
	for _, class := range known.All() {
		share, err := class.Unit.Share(1)
		if err != nil {
			continue
		}
		demand, err := placement.DemandOf(&podrequest.Request{Shares: map[string]api.Share{"main": share},
			Containers: []podrequest.Container{{Name: "main", Class: class.Name}}}, known)
		if err != nil {
			continue
		}
		of := f.roomFor(demand, rooms, withheld)
		of.Class = class.Name
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b Room) int { return strings.Compare(a.Class, b.Class) })
	return all, true
}

// begin reports whether a look begins. It ends with the unlocking of looking.
func (f *Fleet) begin() bool {
	synced := f.synced.Load()
	return synced != nil && (*synced)() && f.looking.TryLock()
}

// rooms are those of the nodes that take slices, by name. The ledgers are those of nodes that take none, or
// not of each GPU.
func (f *Fleet) rooms() (rooms []*placement.Node, withheld []*api.SliceLedger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if n.room != nil {
			rooms = append(rooms, n.room)
		}
		if n.withheld != nil {
			withheld = append(withheld, n.withheld)
		}
	}
	slices.SortFunc(rooms, func(a, b *placement.Node) int { return strings.Compare(a.Name, b.Name) })
	return rooms, withheld
}

// roomFor counts the pods that fit. A demand of many containers may take the search of each node to its
// bound: then there is no room on the nodes that were looked at in time.
func (f *Fleet) roomFor(demand *placement.Demand, rooms []*placement.Node, withheld []*api.SliceLedger) Room {
	at := cmp.Or[clock.PassiveClock](f.Clock, clock.RealClock{})
	begin, pods := at.Now(), 0
	for i, left := range rooms {
		for pods < MaxPods {
			plan, fits := placement.Fit(demand, left)
			if !fits {
				break
			}
			left, pods = left.Without(&plan), pods+1
		}
		late := at.Since(begin) > patience
		if late && pods == 0 {
			return Room{Cause: cause.Insufficient, Why: fmt.Sprintf("the first %d of %d nodes have none, and no more were looked at", i+1, len(rooms))}
		}
		if late || pods == MaxPods {
			break
		}
	}
	if pods > 0 {
		return Room{Pods: pods}
	}
	lacks := diagnosis.Of(demand, slices.Values(rooms), func(string) []string { return nil })
	lacks.Withheld = index.Withheld(slices.Values(withheld))
	lacks.WouldDo = lacks.Withheld != "" && index.WouldDo(demand, slices.Values(withheld))
	return Room{Cause: lacks.Cause(), Why: lacks.String()}
}
