// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/podrequest"
)

// field is one of a room's own, by its path. Tests of what is kept read it, and nothing else.
func field(room any, path ...string) reflect.Value {
	v := reflect.ValueOf(room).Elem()
	for _, name := range path {
		if v = v.FieldByName(name); v.Kind() == reflect.Pointer && len(path) > 1 {
			v = v.Elem()
		}
	}
	if !v.IsValid() {
		panic("no such field")
	}
	return v
}

// kept is how many entries the maps and lists of a room have.
func kept(room any, names ...string) (n int) {
	for _, name := range names {
		n += field(room, name).Len()
	}
	return n
}

// uidsIn are the keys of a room's map by UID.
func uidsIn(room any, path ...string) (uids []types.UID) {
	for _, key := range field(room, path...).MapKeys() {
		uids = append(uids, types.UID(key.String()))
	}
	return uids
}

// searchInTest is the search for places for a gang, as it is now.
type searchInTest struct {
	a    *Allocator
	name podrequest.Group
	// last is the search as it was found.
	last reflect.Value
}

// search finds the one of a gang; false if there is none.
func (a *Allocator) search(name podrequest.Group) (*searchInTest, bool) {
	v := field(a.scheduler, "searches").MapIndex(reflect.ValueOf(name))
	if !v.IsValid() {
		return nil, false
	}
	return &searchInTest{a, name, v.Elem()}, true
}

func (s *searchInTest) restarts() int { return int(s.last.FieldByName("restarts").Int()) }
func (s *searchInTest) paused() bool  { return s.last.FieldByName("paused").Bool() }
func (s *searchInTest) notBefore() time.Time {
	at := s.last.FieldByName("notBefore")
	return *(*time.Time)(at.Addr().UnsafePointer())
}
func (s *searchInTest) begun() bool          { return !s.last.FieldByName("advance").IsNil() }
func (s *searchInTest) spent() time.Duration { return time.Duration(s.last.FieldByName("spent").Int()) }

func (a *Allocator) searches() int { return kept(a.scheduler, "searches") }

// requestsOf are the pods with what they ask for.
func requestsOf(a *Allocator, pods ...*corev1.Pod) (asks []scheduling.Request) {
	for _, pod := range pods {
		if ask, err := scheduling.RequestOf(pod, a.scheduler.Classes); err == nil {
			asks = append(asks, ask)
		}
	}
	return asks
}

// fit is a whole search for places for a gang, with all of its pauses.
func fit(ctx context.Context, a *Allocator, asks []scheduling.Request, need int, within ...scheduling.Within) ([]binding.Assignment, *scheduling.GangDiagnosis, error) {
	for {
		choices, miss, err := a.scheduler.ScheduleGang(ctx, podrequest.Group{Name: "fit"}, asks, need, append(within, scheduling.Within{})[0])
		if later := (queue.Yield{}); !errors.As(err, &later) {
			return choices, miss, err
		}
	}
}

// clockInTest is a clock that a test may replace.
type clockInTest struct{ clock.WithTicker }
