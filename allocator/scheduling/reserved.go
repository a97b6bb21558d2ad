// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/reservation"
)

// seen is how the ranking shows the nodes: as the one who asked last may use them.
type seen struct {
	// against are the reservations that hide room, filled those of which the room is used
	// before their owners can have it. key names the ones that hide room.
	against, filled []*reservation.Reservation
	key             string
	// rooms are the nodes of which room is hidden, as the index has them, by name.
	rooms map[string]hidden
}

// hidden is a node as the index has it and as it is seen.
type hidden struct{ whole, left *placement.Node }

// behind is the node as the index has it.
func (s *seen) behind(room *placement.Node) *placement.Node {
	if h := s.rooms[room.Name]; h.left == room {
		return h.whole
	}
	return room
}

// look has the ranking show the nodes as the asker may use them.
func (s *Scheduler) look(asker reservation.Asker) {
	if s.Reservations == nil {
		return
	}
	before := s.seen
	s.seen.against, s.seen.filled = s.Reservations.Against(asker)
	if slices.Equal(before.against, s.seen.against) {
		return
	}
	var names []string
	s.seen.key = ""
	if s.seen.rooms == nil {
		s.seen.rooms = map[string]hidden{}
	}
	for _, r := range s.seen.against {
		s.seen.key += fmt.Sprintf("%v %v %d\x00", r.Owner, r.Made.UnixNano(), len(r.Plans))
		if !slices.Contains(before.against, r) {
			names = append(names, r.Nodes()...)
		}
	}
	for _, r := range before.against {
		if !slices.Contains(s.seen.against, r) {
			names = append(names, r.Nodes()...)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		delete(s.seen.rooms, name)
		s.show(name)
	}
}

// asSeen is a node of the index as the one who asked last may use it; nil where a newer version
// of its ledger is on its way here.
func (s *Scheduler) asSeen(name string, room *placement.Node) *placement.Node {
	if len(s.seen.against) == 0 || room == nil {
		return room
	}
	if h, known := s.seen.rooms[name]; known && h.whole == room {
		return h.left
	}
	ledger := s.Cache.Index.Behind(room)
	if ledger == nil {
		return nil
	}
	left := reservation.Hide(s.seen.against, room, ledger)
	if delete(s.seen.rooms, name); left != room {
		s.seen.rooms[name] = hidden{whole: room, left: left}
	}
	return left
}

// rooms are all nodes that may take slices, by name, as the one who asked last may use them.
func (s *Scheduler) rooms() []*placement.Node {
	rooms := s.Cache.Index.Room()
	if len(s.seen.against) == 0 {
		return rooms
	}
	for i, room := range rooms {
		rooms[i] = s.asSeen(room.Name, room)
	}
	return slices.DeleteFunc(rooms, func(n *placement.Node) bool { return n == nil })
}
