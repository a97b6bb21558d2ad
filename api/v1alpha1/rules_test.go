// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// Invariant 1: the API server refuses a ledger whose slices exceed their device,
// whoever writes it.
func TestRules(t *testing.T) {
	c := apiserver.Client(t, apiserver.Start(t, apiserver.Options{}))
	slice := func(core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Slice {
		return v1alpha1.Slice{Pod: "uid", Owner: "ns/pod", Ctr: "main", Core: core, Mem: mem}
	}
	reuse := func(s v1alpha1.Slice, core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Slice {
		s.ReuseCore, s.ReuseMem = core, mem
		return s
	}
	idle := func(core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Slice {
		s := slice(0, mem)
		s.Idle = core
		return s
	}
	device := func(uuid string, slices ...v1alpha1.Slice) v1alpha1.DeviceLedger {
		return v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 1000, Slices: slices}
	}
	lent := func(mem v1alpha1.MiB, slices ...v1alpha1.Slice) v1alpha1.DeviceLedger {
		d := device("GPU-1", slices...)
		d.Lent = mem
		return d
	}
	with := func(s v1alpha1.Slice, edit func(*v1alpha1.Slice)) v1alpha1.Slice {
		edit(&s)
		return s
	}
	mode := func(s v1alpha1.Slice, m v1alpha1.Mode) v1alpha1.Slice {
		s.Mode = m
		return s
	}
	instance := func(start, size int32) v1alpha1.Slice {
		s := slice(1, 1)
		s.Mode, s.MIG = v1alpha1.ModeMIG, &v1alpha1.MIGPlace{Profile: 19, Start: start, Size: size}
		return s
	}
	// Every field that a rule reads, and the time: what they cost at most is within the budget.
	since := metav1.Now()
	many := make([]v1alpha1.DeviceLedger, v1alpha1.MaxDevices+1)
	for i := range many {
		many[i] = device(fmt.Sprintf("GPU-%02d-0000-0000-0000-000000000000", i))
		for j := range v1alpha1.MaxSlicesPerDevice {
			s := mode(reuse(slice(1, 3), 1, 1), v1alpha1.ModeMPS)
			s.Pod, s.Since = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", i, j)), &since
			many[i].Slices = append(many[i].Slices, s)
		}
	}
	toMany := device("GPU-1", append(many[0].Slices, many[0].Slices[0])...)

	for name, test := range map[string]struct {
		devices []v1alpha1.DeviceLedger
		refusal string
	}{
		"empty":                 {nil, ""},
		"full":                  {[]v1alpha1.DeviceLedger{device("GPU-1", slice(70, 999), slice(30, 1))}, ""},
		"each device by itself": {[]v1alpha1.DeviceLedger{device("GPU-1", slice(100, 1000)), device("GPU-2", slice(100, 1000))}, ""},
		"full by reuse":         {[]v1alpha1.DeviceLedger{device("GPU-1", slice(60, 600), reuse(slice(100, 1000), 60, 600))}, ""},
		// A rule that compares slices with each other costs more than there is; the
		// node agent adds up what runs.
		"a reuse that nobody counts": {[]v1alpha1.DeviceLedger{device("GPU-1", slice(100, 1000), reuse(slice(100, 1000), 100, 1000))}, ""},
		"as much as there may be":    {many[:v1alpha1.MaxDevices], ""},
		"compute":                    {[]v1alpha1.DeviceLedger{device("GPU-1", slice(70, 1), slice(31, 1))}, "slices add up to more compute than the device has"},
		"memory":                     {[]v1alpha1.DeviceLedger{device("GPU-1", slice(0, 1000), slice(0, 1))}, "slices add up to more memory than the device has"},
		"full of idle slices":        {[]v1alpha1.DeviceLedger{device("GPU-1", slice(100, 1), idle(60, 500), idle(40, 499))}, ""},
		"idle compute":               {[]v1alpha1.DeviceLedger{device("GPU-1", idle(60, 1), idle(41, 1))}, "idle slices add up to no more compute"},
		"memory of idle slices":      {[]v1alpha1.DeviceLedger{device("GPU-1", slice(1, 501), idle(1, 500))}, "more memory"},
		"lent memory":                {[]v1alpha1.DeviceLedger{lent(400, slice(1, 900), idle(1, 500))}, ""},
		"more than is lent":          {[]v1alpha1.DeviceLedger{lent(400, slice(1, 901), idle(1, 500))}, "more memory"},
		"lent to shares":             {[]v1alpha1.DeviceLedger{lent(501, slice(1, 1001), idle(1, 500))}, "no more memory is lent than idle slices have"},
		"lent to nobody":             {[]v1alpha1.DeviceLedger{lent(1)}, "no more memory is lent than idle slices have"},
		"less than nothing is lent":  {[]v1alpha1.DeviceLedger{lent(-1, idle(1, 500))}, "lent"},
		"an idle slice with core":    {[]v1alpha1.DeviceLedger{device("GPU-1", with(idle(1, 1), func(s *v1alpha1.Slice) { s.Core = 1 }))}, "idle slices add up to no more compute"},
		"an idle slice in mode mps":  {[]v1alpha1.DeviceLedger{device("GPU-1", mode(idle(1, 1), v1alpha1.ModeMPS))}, "idle slices add up to no more compute"},
		"another slice that leaves":  {[]v1alpha1.DeviceLedger{device("GPU-1", with(slice(1, 1), func(s *v1alpha1.Slice) { s.Leaving = true }))}, "idle slices add up to no more compute"},
		"compute beyond reuse":       {[]v1alpha1.DeviceLedger{device("GPU-1", slice(60, 1), reuse(slice(100, 1), 59, 0))}, "more compute"},
		"memory beyond reuse":        {[]v1alpha1.DeviceLedger{device("GPU-1", slice(0, 600), reuse(slice(0, 1000), 0, 599))}, "more memory"},
		"the second device":          {[]v1alpha1.DeviceLedger{device("GPU-1"), device("GPU-2", slice(0, 1001))}, "spec.devices[1]"},
		"reuse of more compute":      {[]v1alpha1.DeviceLedger{device("GPU-1", reuse(slice(10, 1), 11, 0))}, "reuseCore is more than core"},
		"reuse of more memory":       {[]v1alpha1.DeviceLedger{device("GPU-1", reuse(slice(10, 1), 0, 2))}, "reuseMem is more than mem"},
		"a device twice":             {[]v1alpha1.DeviceLedger{device("GPU-1", slice(60, 1)), device("GPU-1", slice(60, 1))}, "a device may be listed once only"},
		"negative compute":           {[]v1alpha1.DeviceLedger{device("GPU-1", slice(-1, 1), slice(100, 1))}, "core"},
		"negative memory":            {[]v1alpha1.DeviceLedger{device("GPU-1", slice(0, -1), slice(0, 1000))}, "mem"},
		"negative reuse":             {[]v1alpha1.DeviceLedger{device("GPU-1", reuse(slice(0, 1), -1, 0))}, "reuseCore"},
		"no memory":                  {[]v1alpha1.DeviceLedger{device("GPU-1", slice(1, 0))}, "mem"},
		"sum beyond an integer":      {[]v1alpha1.DeviceLedger{device("GPU-1", slice(0, 1<<62), slice(0, 1<<62), slice(0, 1<<62))}, "slices"},
		"a device of more than one":  {[]v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 101, Mem: 1}}, "core"},
		"a mode that is no slice's":  {[]v1alpha1.DeviceLedger{device("GPU-1", with(slice(1, 1), func(s *v1alpha1.Slice) { s.Mode = v1alpha1.ModeAuto }))}, "mode"},
		"instances side by side":     {[]v1alpha1.DeviceLedger{device("GPU-1", instance(0, 4), instance(4, 2), instance(6, 1))}, ""},
		"instances that overlap":     {[]v1alpha1.DeviceLedger{device("GPU-1", instance(0, 4), instance(3, 1))}, "instances of slices in mode mig overlap"},
		"an instance twice":          {[]v1alpha1.DeviceLedger{device("GPU-1", instance(6, 1), instance(6, 1))}, "overlap"},
		"an instance past the end":   {[]v1alpha1.DeviceLedger{device("GPU-1", instance(6, 4))}, "beyond the device"},
		"mig beside another mode":    {[]v1alpha1.DeviceLedger{device("GPU-1", instance(0, 4), slice(1, 1))}, "not both"},
		"mps beside another mode":    {[]v1alpha1.DeviceLedger{device("GPU-1", mode(slice(1, 1), v1alpha1.ModeMPS), slice(1, 1))}, "mode mps or in other modes"},
		"mps beside a whole one":     {[]v1alpha1.DeviceLedger{device("GPU-1", mode(slice(1, 1), v1alpha1.ModeMPS), mode(slice(1, 1), v1alpha1.ModeExclusive))}, "mode mps or in other modes"},
		"mps beside mps":             {[]v1alpha1.DeviceLedger{device("GPU-1", mode(slice(1, 1), v1alpha1.ModeMPS), mode(slice(1, 1), v1alpha1.ModeMPS))}, ""},
		"mig without a place":        {[]v1alpha1.DeviceLedger{device("GPU-1", with(slice(1, 1), func(s *v1alpha1.Slice) { s.Mode = v1alpha1.ModeMIG }))}, "if and only if"},
		"a place in another mode":    {[]v1alpha1.DeviceLedger{device("GPU-1", with(instance(0, 1), func(s *v1alpha1.Slice) { s.Mode = "" }))}, "if and only if"},
		"nobody's":                   {[]v1alpha1.DeviceLedger{device("GPU-1", with(slice(1, 1), func(s *v1alpha1.Slice) { s.Owner = "" }))}, "owner"},
		"too many slices":            {[]v1alpha1.DeviceLedger{toMany}, "256"},
		"too many devices":           {many, "32"},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := &v1alpha1.SliceLedger{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
				Spec:       v1alpha1.SliceLedgerSpec{Devices: test.devices},
			}
			err := c.Create(t.Context(), ledger)
			switch {
			case test.refusal == "" && err != nil:
				t.Errorf("refused: %.400s", err)
			case test.refusal != "" && !apierrors.IsInvalid(err):
				t.Errorf("not refused: %v", err)
			case test.refusal != "" && !strings.Contains(err.Error(), test.refusal):
				t.Errorf("refused without saying %q: %.400s", test.refusal, err)
			}
		})
	}
	testHoldRules(t, c)
}

// testHoldRules asserts Invariant 1 for what is held: to the API server a held slice
// is as much as any other.
func testHoldRules(t *testing.T, c client.Client) {
	spec := func(other v1alpha1.Slice, holds ...v1alpha1.Hold) v1alpha1.SliceLedgerSpec {
		held := v1alpha1.Slice{Pod: "held", Owner: "ns/a", Ctr: "main", Core: 60, Mem: 600}
		other.Pod, other.Owner, other.Ctr = "other", "ns/b", "main"
		return v1alpha1.SliceLedgerSpec{Holds: holds,
			Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{held, other}}}}
	}
	hold := func(owner string, pods ...types.UID) v1alpha1.Hold {
		return v1alpha1.Hold{Owner: owner, Until: metav1.Now(), Pods: pods}
	}
	gang := hold("PodGroup/ns/gang", "held")
	for name, test := range map[string]struct {
		spec    v1alpha1.SliceLedgerSpec
		refusal string
	}{
		"the rest beside what is held": {spec(v1alpha1.Slice{Core: 40, Mem: 400}, gang), ""},
		"more compute than the rest":   {spec(v1alpha1.Slice{Core: 41, Mem: 400}, gang), "more compute than the device has"},
		"more memory than the rest":    {spec(v1alpha1.Slice{Core: 40, Mem: 401}, gang), "more memory than the device has"},
		"for nobody":                   {spec(v1alpha1.Slice{Mem: 1}, hold("PodGroup/ns/gang")), "pods"},
		"of nobody":                    {spec(v1alpha1.Slice{Mem: 1}, hold("", "held")), "owner"},
	} {
		t.Run("hold/"+name, func(t *testing.T) {
			err := c.Create(t.Context(), &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Spec: test.spec})
			switch {
			case test.refusal == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.refusal != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.refusal)):
				t.Errorf("got %v, want a refusal that says %q", err, test.refusal)
			}
		})
	}
}

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
	must.Do(t, c.Create(t.Context(), gold))
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
