// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"vernier.dev/vernier/api/cause"
)

// causes are the ones from the first to the last that are named, with what they say and what helps.
func causes(of []string) (table, error) {
	t := table{head: []string{"cause", "it says", "remedy"}}
	at := func(word string) int {
		return slices.IndexFunc(cause.Docs, func(d cause.Doc) bool { return string(d.Cause) == word })
	}
	if len(of) != 2 || at(of[0]) < 0 || at(of[1]) < at(of[0]) {
		return t, fmt.Errorf("%v: name the first and the last of some causes in turn", of)
	}
	for _, d := range cause.Docs[at(of[0]) : at(of[1])+1] {
		remedy := d.Remedy
		if d.See != "" {
			remedy += fmt.Sprintf(" ([more](%s))", d.See)
		}
		t.add(code(string(d.Cause)), code(d.Says), remedy)
	}
	return t, nil
}
