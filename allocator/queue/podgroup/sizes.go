// SPDX-License-Identifier: Apache-2.0

package podgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/podrequest"
)

// ErrUnknown says that the groups of an API have not been read yet. It passes.
var ErrUnknown = errors.New("its PodGroups have not been read yet")

// Sizes knows the PodGroups there are. It is safe for concurrent use. The zero
// value has read nothing.
type Sizes struct {
	mu sync.RWMutex
	// sizes are what the PodGroups say, by group.
	sizes map[podrequest.Group]size
	state map[podrequest.GroupAPI]served.State
}

// size is what a PodGroup says: how many pods must start together, or what is wrong
// with it.
type size struct {
	min int
	err error
	// ends says how its pods may be ended, empty where it says nothing.
	ends string
	// topology are the labels of its topology constraints.
	topology []string
}

// Min is how many pods of a group must start together, given those that there are:
// 1 means that each may start alone. Errors other than ErrUnknown are for the
// owners of the pods: they name the field and the remedy.
func (s *Sizes) Min(n podrequest.Group, members []*corev1.Pod) (int, error) {
	if n.API == podrequest.Kueue {
		return kueueTotal(n, members)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	known, exists := s.sizes[n]
	switch {
	case exists:
		return known.min, known.err
	case s.state[n.API] == served.Unread:
		return 0, ErrUnknown
	case s.state[n.API] == served.Absent && n.API == podrequest.Volcano:
		return 1, nil // left on pods that come from there: nobody else reads it
	case s.state[n.API] == served.Absent:
		return 0, fmt.Errorf("%s names %s, and this cluster has no PodGroups of %s: install them, or take it off the pod", n.API.Reference(), n, n.API)
	default:
		return 0, fmt.Errorf("%s names %s of %s, which does not exist: create it, or correct the name", n.API.Reference(), n, n.API)
	}
}

// How a PodGroup says that its pods may be ended.
const (
	EndPods  = "Pod"
	EndGroup = "PodGroup"
)

// Ends is how the pods of a group may be ended: EndPods one by one, EndGroup all together, and
// empty where it does not say.
func (s *Sizes) Ends(n podrequest.Group) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sizes[n].ends
}

// Topology are the labels of which the nodes of a group's pods must have the
// same values. They are those of its schedulingConstraints.topology; empty
// where the pods may be anywhere.
func (s *Sizes) Topology(n podrequest.Group) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sizes[n].topology
}

// apis have their groups as objects.
var apis = []podrequest.GroupAPI{podrequest.Native, podrequest.Coscheduling, podrequest.Volcano}

// Await waits until the groups of every API have been read or found not to be
// served, for so long at most.
func (s *Sizes) Await(ctx context.Context, atMost time.Duration) {
	_ = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, atMost, true, func(context.Context) (bool, error) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return !slices.ContainsFunc(apis, func(api podrequest.GroupAPI) bool { return s.state[api] == served.Unread }), nil
	})
}

// kueueTotal reads the one number that all pods of one of Kueue's groups carry.
func kueueTotal(n podrequest.Group, members []*corev1.Pod) (int, error) {
	text := ""
	for i, pod := range members {
		switch t := podrequest.KueueTotal(pod); {
		case i == 0:
			text = t
		case t != text:
			return 0, fmt.Errorf("annotation %s: pods of %s say %q and %q: all must say the same", podrequest.AnnotationKueueTotal, n, text, t)
		}
	}
	total, err := strconv.Atoi(text)
	if err != nil || total < 1 {
		return 0, fmt.Errorf("annotation %s of the pods of %s is %q: it must be the number of its pods, 1 or more", podrequest.AnnotationKueueTotal, n, text)
	}
	return total, nil
}

// put takes in a PodGroup.
func (s *Sizes) put(api podrequest.GroupAPI, g *podGroup) podrequest.Group {
	n := nameOf(api, g)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizes == nil {
		s.sizes = map[podrequest.Group]size{}
	}
	s.sizes[n] = g.size
	return n
}

func (s *Sizes) drop(n podrequest.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sizes, n)
}

// set notes whether the API's groups have been read; groups of an API that is not
// served are forgotten.
func (s *Sizes) set(api podrequest.GroupAPI, now served.State) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now != served.Read {
		for n := range s.sizes {
			if n.API == api {
				delete(s.sizes, n)
			}
		}
	}
	if s.state == nil {
		s.state = map[podrequest.GroupAPI]served.State{}
	}
	changed = s.state[api] != now
	s.state[api] = now
	return changed
}

// read is what a PodGroup says.
func read(n podrequest.Group, obj *unstructured.Unstructured) size {
	path := []string{"spec", "minMember"}
	var is size
	if n.API == podrequest.Native {
		is.ends, _, _ = unstructured.NestedString(obj.Object, "spec", "disruptionMode")
		is.topology = topology(obj)
		if _, gang, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "schedulingPolicy", "gang"); !gang {
			is.min = 1 // the basic policy: no gang
			return is
		}
		path = []string{"spec", "schedulingPolicy", "gang", "minCount"}
	}
	least, _, err := unstructured.NestedInt64(obj.Object, path...)
	if err == nil && least == 0 && n.API == podrequest.Volcano {
		is.min = 1 // Volcano's own default: no gang
		return is
	}
	if err != nil || least < 1 {
		return size{err: fmt.Errorf("%s: %s is %d: set it to the number of pods that must start together, 1 or more", n, n.API.Field(), least)}
	}
	is.min = int(least)
	return is
}

// maxTopology bounds the topology constraints of a group; the API takes one now.
const maxTopology = 4

func topology(obj *unstructured.Unstructured) (keys []string) {
	list, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "schedulingConstraints", "topology")
	constraints, _ := list.([]any)
	for _, c := range constraints[:min(len(constraints), maxTopology)] {
		if c, is := c.(map[string]any); is {
			if key, _, _ := unstructured.NestedString(c, "key"); key != "" {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
