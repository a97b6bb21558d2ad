// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseMode(t *testing.T) {
	for text, want := range map[string]Mode{"": ModeAuto, "auto": ModeAuto, "limiter": ModeLimiter, "mps": ModeMPS, "mig": ModeMIG, "exclusive": ModeExclusive} {
		if got, err := ParseMode(text); got != want || err != nil {
			t.Errorf("mode %q: got %q, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"Limiter": "unknown", "limiter ": "unknown", "hard": "unknown",
	} {
		got, err := ParseMode(text)
		if got != "" || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "auto, limiter, mps, mig or exclusive") {
			t.Errorf("mode %q: got %q, %v; want it %s, and what to use instead", text, got, err, want)
		}
	}
}

// auto is a wish, never the mode of a slice.
func TestPlaceable(t *testing.T) {
	for mode, want := range map[Mode]bool{ModeLimiter: true, ModeExclusive: true, ModeAuto: false, ModeMPS: true, ModeMIG: true, "": false} {
		if mode.Placeable() != want {
			t.Errorf("%q placeable: %v", mode, !want)
		}
	}
	if got := (&Slice{}).EffectiveMode(); got != ModeLimiter {
		t.Errorf("a slice without a mode is %q, want limiter", got)
	}
	if got := (&Slice{Mode: ModeExclusive}).EffectiveMode(); got != ModeExclusive {
		t.Errorf("an exclusive slice is %q", got)
	}
}

func TestParsePolicy(t *testing.T) {
	for text, want := range map[string]Policy{"": PolicyPack, "pack": PolicyPack, "spread": PolicySpread} {
		if got, err := ParsePolicy(text); got != want || err != nil {
			t.Errorf("policy %q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"Pack", "binpack", "pack,spread"} {
		if got, err := ParsePolicy(text); err == nil || got != "" || !strings.Contains(err.Error(), "pack or spread") {
			t.Errorf("policy %q: got %q, %v", text, got, err)
		}
	}
}

func TestParseBurst(t *testing.T) {
	for text, want := range map[string]Burst{"": BurstNone, "none": BurstNone, "idle": BurstIdle} {
		if got, err := ParseBurst(text); got != want || err != nil {
			t.Errorf("burst %q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"Idle", "true", "50"} {
		if got, err := ParseBurst(text); err == nil || got != "" || !strings.Contains(err.Error(), "none or idle") {
			t.Errorf("burst %q: got %q, %v", text, got, err)
		}
	}
}

func TestParseSameGPU(t *testing.T) {
	for text, want := range map[string]bool{"": false, "required": true} {
		if got, err := ParseSameGPU(text); got != want || err != nil {
			t.Errorf("same-gpu %q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"Required", "true", "preferred"} {
		if got, err := ParseSameGPU(text); err == nil || got || !strings.Contains(err.Error(), "use required, or remove") {
			t.Errorf("same-gpu %q: got %v, %v", text, got, err)
		}
	}
}

func TestParseQoS(t *testing.T) {
	for text, want := range map[string]QoS{"": QoSGuaranteed, "guaranteed": QoSGuaranteed, "burstable": QoSBurstable, "opportunistic": QoSOpportunistic} {
		if got, err := ParseQoS(text); got != want || err != nil {
			t.Errorf("qos %q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"besteffort", "Guaranteed"} {
		if got, err := ParseQoS(text); err == nil || got != "" || !strings.Contains(err.Error(), "guaranteed, burstable or opportunistic") {
			t.Errorf("qos %q: got %q, %v", text, got, err)
		}
	}
}

func TestAllowList(t *testing.T) {
	const (
		a100 = "NVIDIA A100-SXM4-80GB"
		a10  = "NVIDIA A10"
		h200 = "NVIDIA H200"
		t4   = "Tesla T4"
		uuid = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
	)
	all := []string{a100, a10, h200, t4, uuid}
	for list, want := range map[string][]string{
		"":                       all,
		"A100":                   {a100},
		"a100":                   {a100},
		"A10":                    {a10},
		"A100,H200":              {a100, h200},
		" A100 , H200 ":          {a100, h200},
		"A100-SXM4":              {a100},
		"a100 sxm4":              {a100},
		"A100-80GB":              {}, // not one after the other
		"SXM":                    {}, // not a whole word
		"NVIDIA":                 {a100, a10, h200},
		"!A100":                  {a10, h200, t4, uuid},
		"! A100":                 {a10, h200, t4, uuid},
		"!A100,!T4":              {a10, h200, uuid},
		"NVIDIA,!H200":           {a100, a10},
		"!A100,A100":             {}, // what is negated is out
		uuid:                     {uuid},
		"!" + uuid:               {a100, a10, h200, t4},
		uuid[:len(uuid)-1] + "2": {},
		"V100":                   {},
	} {
		l, err := ParseAllowList(list)
		if err != nil {
			t.Errorf("%q: %v", list, err)
			continue
		}
		allowed := make(map[string]bool)
		for _, name := range want {
			allowed[name] = true
		}
		again, err := ParseAllowList(l.String())
		if err != nil {
			t.Errorf("%q as text: %v", list, err)
		}
		for _, name := range all {
			if l.Allows(name) != allowed[name] || again.Allows(name) != allowed[name] {
				t.Errorf("%q allows %q: %v, as text %q: %v", list, name, l.Allows(name), l, again.Allows(name))
			}
		}
		if l.Any() != (list != "") {
			t.Errorf("%q restricts: %v", list, l.Any())
		}
	}
}

// A list that cannot mean what its author wants is refused, never read as one
// that allows everything.
func TestAllowListRefuses(t *testing.T) {
	for _, list := range []string{" ", ",", "A100,", ",A100", "A100,,T4", "!", "A100,!", "-", "!!A100"} {
		if l, err := ParseAllowList(list); err == nil || l.Any() {
			t.Errorf("%q was accepted as %+v", list, l)
		}
	}
}

// A tenant writes the list, and it is compared with every device of the cluster: its
// items are bounded, and its words are split when it is parsed and not for each device.
func TestHostileAllowList(t *testing.T) {
	var many []string
	for i := range MaxAllowListItems + 1 {
		many = append(many, fmt.Sprintf("M%d", i))
	}
	if _, err := ParseAllowList(strings.Join(many[1:], ",")); err != nil {
		t.Errorf("%d items: %v", MaxAllowListItems, err)
	}
	for name, list := range map[string]string{
		"an item too many": strings.Join(many, ","),
		"too long":         "a" + strings.Repeat(",a", MaxAnnotationBytes),
	} {
		if l, err := ParseAllowList(list); err == nil || !strings.Contains(err.Error(), "name fewer devices") || len(err.Error()) > 200 || l.Any() {
			t.Errorf("%s: accepted as %.50v, %v", name, l, err)
		}
	}
	repeated, err := ParseAllowList("a" + strings.Repeat(",a,!b, A", 20))
	if err != nil || repeated.String() != "a,!b" {
		t.Errorf("repeated items: %v, %v", repeated, err)
	}
	// They are compared with each other at every reading of the pod.
	if _, err := ParseAllowList("a" + strings.Repeat(",a", MaxAllowListItems)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too many repeated items: %v", err)
	}
	l, _ := ParseAllowList(strings.Join(many[1:], ","))
	short, _ := ParseAllowList(many[1])
	allocations := func(l AllowList) float64 {
		return testing.AllocsPerRun(10, func() { l.Allows("NVIDIA A100-SXM4-80GB") })
	}
	if long, one := allocations(l), allocations(short); long > one {
		t.Errorf("a device compared with %d items costs %v allocations, with one item %v: the list is split again", MaxAllowListItems, long, one)
	}
}
