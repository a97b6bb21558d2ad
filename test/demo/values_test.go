// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// What is set becomes the flags that it stands for in the chart, and the manifests of it.
func TestValues(t *testing.T) {
	folder := must.Get(renderValues(t.Context(), filepath.Join(t.TempDir(), "manifests"),
		"allocator.reserveAfter=20s allocator.preemption=Never dialects.enabled={kai,hami} node.opportunisticCPU=50"))(t)
	// The allocator reads templates as the webhook reads pods.
	reads := []string{"--dialects=kai,hami", "--gpushare-unit=GiB", "--hami-default-mem=0", "--hami-default-cores=0", "--nvidia-replicas=0"}
	for part, want := range map[string][]string{
		"allocator": append([]string{"--preemption=Never", "--reserve-after=20s"}, reads...),
		"webhook":   reads,
		"node":      {"--opportunistic-cpu=50"},
	} {
		if flags, err := folder.Flags(part); err != nil || !slices.Equal(flags, want) {
			t.Errorf("%s: flags %q, %v, want %q", part, flags, err, want)
		}
	}
	for path, says := range map[string]string{"rbac": "", "admission": "nvidia.com/gpumem", "namespace.yaml": "vernier-system"} {
		objects, err := folder.Read(path)
		if err != nil || len(objects) == 0 {
			t.Fatalf("%s: %d objects, %v", path, len(objects), err)
		}
		said := false
		for _, obj := range objects {
			text := must.Get(obj.MarshalJSON())(t)
			said = said || strings.Contains(string(text), says)
			if strings.Contains(string(text), "pods/eviction") && obj.GetName() == "vernier-allocator" {
				t.Error("the allocator may evict pods although it is never to")
			}
		}
		if !said {
			t.Errorf("%s says nothing of %s", path, says)
		}
	}
}

// With nothing set, what is installed is deploy/manifests, and Helm is not needed.
func TestNoValues(t *testing.T) {
	t.Setenv("PATH", "")
	folder, err := renderValues(t.Context(), "", " ")
	if err != nil || folder != "" {
		t.Fatalf("%q, %v", folder, err)
	}
	for _, part := range []string{"allocator", "webhook", "node"} {
		if flags, err := folder.Flags(part); err != nil || len(flags) > 0 {
			t.Errorf("%s: flags %q, %v", part, flags, err)
		}
	}
}

// What cannot be set is refused with what can, or with the chart's own words.
func TestValuesRefused(t *testing.T) {
	for set, says := range map[string]string{
		"allocator.reserveafter=20s":  "SET: allocator.reserveafter is no value",
		"allocator.replicas=3":        "allocator.args, allocator.lookahead, allocator.preemption, allocator.reserveAfter",
		"node=3":                      "node.opportunisticCPU",
		"allocator.preemption":        "not NAME=VALUE",
		"allocator.preemption=never":  "allocator/preemption",
		"dialects.enable={hami}":      "enable",
		"webhook.minimumShare.core=3": "core",
	} {
		if _, err := renderValues(t.Context(), filepath.Join(t.TempDir(), "manifests"), set); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: no word of %q: %v", set, says, err)
		}
	}
}

// All that may be set is in the reference.
func TestSettableIsValues(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/reference/values.md"))(t)
	for _, name := range settable {
		if !strings.Contains(string(page), "| `"+name+"` |") && !strings.Contains(string(page), "| `"+name+".") {
			t.Errorf("docs/reference/values.md has no %s", name)
		}
	}
}

// GPU=real on a machine without a driver says what is missing and what goes without; another
// value says what there is.
func TestChosenGPUs(t *testing.T) {
	if n, what, err := chosenGPUs(""); err != nil || n.DriverRoot != "" || !strings.Contains(what, "simulated") {
		t.Errorf("by default: %+v, %s, %v", n, what, err)
	}
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		if _, _, err := chosenGPUs("real"); err == nil || !strings.Contains(err.Error(), "no NVIDIA driver") || !strings.Contains(err.Error(), "Without GPU=real") {
			t.Errorf("real: %v", err)
		}
	}
	if _, _, err := chosenGPUs("reel"); err == nil || !strings.Contains(err.Error(), "want real or simulated") {
		t.Errorf("a mistake: %v", err)
	}
}
