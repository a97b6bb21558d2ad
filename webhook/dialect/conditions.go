// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"slices"
	"strings"
)

// HalfEnabled compares the dialects that are switched on with the match conditions by which
// the API server sends pods to the webhook. Unsent are the names of the former that do not
// stand in the latter: pods that ask by them are created as they are. Unread are the names
// of dialects that stand there and that no dialect switched on reads. Their pods stay
// as they are, and wait for the webhook for nothing.
func (s Set) HalfEnabled(conditions []string) (unsent, unread []string) {
	text := strings.Join(conditions, "\n")
	stands := func(name string) bool {
		return strings.Contains(text, "'"+name+"'") || strings.Contains(text, `"`+name+`"`)
	}
	read := s.names()
	for _, name := range read {
		// Without a condition all pods come.
		if len(conditions) > 0 && !stands(name) {
			unsent = append(unsent, name)
		}
	}
	every := Settings{NVIDIATimeSlicing: true}.build()
	unread = slices.DeleteFunc(every.names(), func(name string) bool { return !stands(name) || slices.Contains(read, name) })
	return unsent, unread
}

// names are the resources and the prefixes of annotations of all dialects, sorted.
func (s Set) names() []string {
	var names []string
	for _, d := range s {
		words := d.Words()
		for _, name := range words.Resources {
			names = append(names, string(name))
		}
		names = append(names, words.AnnotationPrefixes...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
