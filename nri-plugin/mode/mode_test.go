// SPDX-License-Identifier: Apache-2.0

package mode_test

import (
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/exclusive"
	"vernier.dev/vernier/nri-plugin/mode/limiter"
)

const size = v1alpha1.MiB(81920)

var all = mode.Set{v1alpha1.ModeLimiter: &limiter.Limiter{}, v1alpha1.ModeExclusive: exclusive.Mode{}}

// shows is a node with one device, whose MIG mode is that.
func shows(mig v1alpha1.MIGState) device.Snapshot {
	return device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: "GPU-0", Mem: size, MIG: mig}}}
}

func holding(grants ...ledger.Grant) mode.Container {
	for i := range grants {
		grants[i].UUID, grants[i].DeviceMem = "GPU-0", size
	}
	return mode.Container{Pod: "uid", Owner: "team/a", Name: "main", Grants: grants}
}

// All slices of a container are in one mode, which the node has.
func TestFor(t *testing.T) {
	for says, c := range map[string]mode.Container{
		"limiter and exclusive": holding(ledger.Grant{Mode: v1alpha1.ModeLimiter}, ledger.Grant{Mode: v1alpha1.ModeExclusive}),
		"no slices":             holding(),
		"does not have":         holding(ledger.Grant{Mode: "other"}),
	} {
		if _, err := all.For(c); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// A device that can't hold a slice in its mode is not given, and why is said.
func TestSupports(t *testing.T) {
	part := ledger.Grant{Core: 30, Mem: 1024, Mode: v1alpha1.ModeLimiter}
	whole := ledger.Grant{Core: 100, Mem: size, Mode: v1alpha1.ModeExclusive}
	notWhole := whole
	notWhole.Mem--
	for name, c := range map[string]struct {
		grant ledger.Grant
		now   device.Snapshot
		says  string
	}{
		"a part":                 {grant: part, now: shows(v1alpha1.MIGDisabled)},
		"a part, MIG":            {grant: part, now: shows(v1alpha1.MIGEnabled), says: "MIG mode"},
		"whole":                  {grant: whole, now: shows(v1alpha1.MIGUnsupported)},
		"whole, MIG":             {grant: whole, now: shows(v1alpha1.MIGEnabled), says: "MIG mode"},
		"exclusive, and a part":  {grant: notWhole, now: shows(v1alpha1.MIGDisabled), says: "part of the device"},
		"the device is not here": {grant: part, says: "not on this node"},
	} {
		err := all.Supports(c.now, holding(c.grant))
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("Invariant 2: %s: %v, want %q", name, err, c.says)
		}
	}
}

// A slice's status says why it isn't in a stronger mode, after what else it says,
// and nothing of a mode that the request rules out.
func TestExplain(t *testing.T) {
	for name, c := range map[string]struct {
		grant ledger.Grant
		note  string
		want  string
	}{
		"strongest": {grant: ledger.Grant{Core: 100, Mem: size, Mode: v1alpha1.ModeExclusive}},
		"a part":    {grant: ledger.Grant{Core: 30, Mem: 1024, Mode: v1alpha1.ModeLimiter}},
		"weaker by request": {grant: ledger.Grant{Core: 100, Mem: size, Mode: v1alpha1.ModeLimiter}, note: "first",
			want: "first; not exclusive: the pod asks for limiter, by vernier.dev/mode or by memory in MiB"},
	} {
		held := holding(c.grant)
		status := []v1alpha1.SliceStatus{mode.Status(held, held.Grants[0])}
		status[0].Note = c.note
		all.Explain(shows(v1alpha1.MIGDisabled), held.Grants, status)
		if status[0].Note != c.want {
			t.Errorf("%s: %q, want %q", name, status[0].Note, c.want)
		}
	}
}
