// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
)

func TestGPUClassRules(t *testing.T) {
	c := apiserver.Client(t, apiserver.Start(t, apiserver.Options{}))
	class := func(name string, edit func(*v1alpha1.GPUClassSpec)) *v1alpha1.GPUClass {
		of := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUClassSpec{
			Models: []string{"NVIDIA H100 80GB HBM3"}, Unit: v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}}}
		if edit != nil {
			edit(&of.Spec)
		}
		return of
	}
	for name, tt := range map[string]struct {
		class *v1alpha1.GPUClass
		want  string
	}{
		"gold":             {class("gold", nil), ""},
		"32 characters":    {class(strings.Repeat("g", 32), nil), ""},
		"without memory":   {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Unit.MemMiB = 0 }), ""},
		"all fields":       {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Mode, s.Topology = "mig", "nvlink:required" }), ""},
		"whole GPUs":       {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Mode, s.Unit = "exclusive", v1alpha1.GPUUnit{Core: 100} }), ""},
		"core":             {class("core", nil), "none of core, mem and mem-mib"},
		"mem":              {class("mem", nil), "none of core, mem and mem-mib"},
		"mem-mib":          {class("mem-mib", nil), "none of core, mem and mem-mib"},
		"33 characters":    {class(strings.Repeat("g", 33), nil), "DNS label of at most 32"},
		"two labels":       {class("gold.h100", nil), "DNS label of at most 32"},
		"no models":        {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models = []string{} }), "spec.models"},
		"many models":      {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models = make([]string, 17) }), "spec.models"},
		"a negated model":  {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models[0] = "!H100" }), "spec.models[0]"},
		"a list as model":  {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models[0] = "H100,H200" }), "spec.models[0]"},
		"an escape":        {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models[0] = "H100\x1b[2J" }), "spec.models[0]"},
		"a line break":     {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models[0] = "H100\n" }), "spec.models[0]"},
		"a C1 control":     {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Models[0] = "H100\u009b2J" }), "spec.models[0]"},
		"no compute":       {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Unit.Core = 0 }), "spec.unit.core"},
		"much compute":     {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Unit.Core = 101 }), "spec.unit.core"},
		"unknown mode":     {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Mode = "hard" }), "spec.mode"},
		"part, exclusive":  {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Mode = "exclusive" }), "mode exclusive gives whole GPUs"},
		"unknown topology": {class("gold", func(s *v1alpha1.GPUClassSpec) { s.Topology = "near" }), "spec.topology"},
	} {
		err := c.Create(t.Context(), tt.class, client.DryRunAll)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	gold := class("gold", nil)
	if err := c.Create(t.Context(), gold); err != nil {
		t.Fatal(err)
	}
	if gold.Spec.Mode != v1alpha1.ModeAuto {
		t.Errorf("mode %q without one, want auto", gold.Spec.Mode)
	}
	for name, tt := range map[string]struct {
		edit func(*v1alpha1.GPUClassSpec)
		want string
	}{
		"mode":     {func(s *v1alpha1.GPUClassSpec) { s.Mode = "mps" }, ""},
		"topology": {func(s *v1alpha1.GPUClassSpec) { s.Topology = "numa" }, ""},
		"models":   {func(s *v1alpha1.GPUClassSpec) { s.Models = append(s.Models, "NVIDIA H200") }, "spec.models: Invalid value: cannot change"},
		"compute":  {func(s *v1alpha1.GPUClassSpec) { s.Unit.Core = 50 }, "cannot change, pods have what it says: make another class"},
		"memory":   {func(s *v1alpha1.GPUClassSpec) { s.Unit.MemMiB = 0 }, "cannot change, pods have what it says: make another class"},
	} {
		now := gold.DeepCopy()
		tt.edit(&now.Spec)
		err := c.Update(t.Context(), now, client.DryRunAll)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("another %s: %v, want %q", name, err, tt.want)
		}
	}
}
