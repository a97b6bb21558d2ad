// SPDX-License-Identifier: Apache-2.0

// Package chain owns how several hooks of a CDI spec become one. The program
// vernier-cdi-hook runs it as the runtime would run them one after the other. It
// knows nothing of what a hook does.
package chain

import (
	"iter"
	"slices"

	"tags.cncf.io/container-device-interface/specs-go"
)

// next parts the arguments of two hooks.
const next = "--"

// Join makes one hook of those that follow each other at the same stage, with the
// same program and environment. The runtime runs the hooks of one stage in their
// order, so this changes nothing but the number of processes. A hook that has a
// timeout, or an argument that would part it, stays separate.
func Join(hooks []*specs.Hook) []*specs.Hook {
	var joined []*specs.Hook
	for _, h := range hooks {
		if n := len(joined); n > 0 && joinable(joined[n-1], h) {
			last := *joined[n-1]
			last.Args = slices.Concat(last.Args, []string{next}, h.Args[1:])
			joined[n-1] = &last
			continue
		}
		joined = append(joined, h)
	}
	return joined
}

func joinable(a, b *specs.Hook) bool {
	return a.HookName == b.HookName && a.Path == b.Path && slices.Equal(a.Env, b.Env) &&
		a.Timeout == nil && b.Timeout == nil && len(a.Args) > 1 && len(b.Args) > 1 &&
		!slices.Contains(b.Args, next)
}

// Split gives the arguments of each hook in those of a joined one, without the
// program's name.
func Split(args []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for len(args) > 0 {
			end := slices.Index(args, next)
			if end < 0 {
				end = len(args)
			}
			if end > 0 && !yield(args[:end:end]) {
				return
			}
			args = args[min(end+1, len(args)):]
		}
	}
}
