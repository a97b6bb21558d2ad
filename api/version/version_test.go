// SPDX-License-Identifier: Apache-2.0

package version

import (
	"runtime/debug"
	"testing"
)

func TestChoose(t *testing.T) {
	of := func(version string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}}
	}
	for _, c := range []struct {
		stamp string
		info  *debug.BuildInfo
		want  string
	}{
		{"0.1.0", of("v0.2.0"), "0.1.0"},
		{"", of("v0.2.0"), "0.2.0"},
		{"", of("(devel)"), "devel"},
		{"", of(""), "devel"},
		{"", nil, "devel"},
	} {
		if got := choose(c.stamp, c.info); got != c.want {
			t.Errorf("stamp %q, build info %v: %q, want %q", c.stamp, c.info, got, c.want)
		}
	}
}
