// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// list reads "gpu-core=30 cpu=2": names that start with gpu are ours.
func list(t *testing.T, text string) corev1.ResourceList {
	t.Helper()
	out := corev1.ResourceList{}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "gpu") || strings.HasPrefix(name, "idle") {
			name = api.Prefix + name
		}
		q := must.Get(resource.ParseQuantity(value))(t)
		out[corev1.ResourceName(name)] = q
	}
	return out
}

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		limits string
		want   api.Share
	}{
		{"gpu-core=30 gpu-mem=25", api.Share{GPUs: 1, Core: 30, MemPercent: 25}},
		{"gpu-core=30", api.Share{GPUs: 1, Core: 30, MemPercent: 30}},
		{"gpu-core=1", api.Share{GPUs: 1, Core: 1, MemPercent: 1}},
		{"gpu-core=30 gpu-mem-mib=20480", api.Share{GPUs: 1, Core: 30, MemMiB: 20480}},
		// Kubernetes writes 20000 as 20k.
		{"gpu-core=30 gpu-mem-mib=20000", api.Share{GPUs: 1, Core: 30, MemMiB: 20000}},
		{"gpu-core=30 gpu-mem-mib=1", api.Share{GPUs: 1, Core: 30, MemMiB: 1}},
		{"gpu-core=100", api.Share{GPUs: 1, Core: 100, MemPercent: 100}},
		{"gpu-core=150", api.Share{GPUs: 2, Core: 75, MemPercent: 75}},
		{"gpu-core=200 gpu-mem=50", api.Share{GPUs: 2, Core: 100, MemPercent: 25}},
		{"gpu-core=40 gpu=4", api.Share{GPUs: 4, Core: 10, MemPercent: 10}},
		{"gpu-core=40 gpu-mem-mib=4096 gpu=4", api.Share{GPUs: 4, Core: 10, MemMiB: 1024}},
		{"gpu-core=1600", api.Share{GPUs: 16, Core: 100, MemPercent: 100}},
		{"gpu-mem=25", api.Share{GPUs: 1, MemPercent: 25}},
		{"gpu-mem-mib=512", api.Share{GPUs: 1, MemMiB: 512}},
		{"gpu-mem=150 gpu=2", api.Share{GPUs: 2, MemPercent: 75}},
		{"gpu-core=10 gpu-mem=0 gpu-mem-mib=0Gi gpu=0 gpu-x=0", api.Share{GPUs: 1, Core: 10, MemPercent: 10}},
		{"gpu-core=0 gpu-mem-mib=512", api.Share{GPUs: 1, MemMiB: 512}},
		{"idle-core=30 idle-mem-mib=4096", api.Share{GPUs: 1, MemMiB: 4096, Idle: 30}},
		{"idle-core=100 idle-mem-mib=1 gpu-core=0", api.Share{GPUs: 1, MemMiB: 1, Idle: 100}},
		{"gpu-core=3e1 cpu=2 nvidia.com/hca=1", api.Share{GPUs: 1, Core: 30, MemPercent: 30}},
	} {
		t.Run(tt.limits, func(t *testing.T) {
			limits := list(t, tt.limits)
			for _, requests := range []corev1.ResourceList{nil, limits} {
				got, errs := ShareOf(corev1.ResourceRequirements{Limits: limits, Requests: requests}, nil, field.NewPath("resources"))
				if len(errs) > 0 {
					t.Fatalf("refused: %v", errs)
				}
				if got != tt.want {
					t.Errorf("got %+v, want %+v", got, tt.want)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	var known classes.Set
	for _, name := range []string{"gold", "silver"} {
		known.Put(&api.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.GPUClassSpec{Unit: api.GPUUnit{Core: 25, MemMiB: 1024}}})
	}
	for _, tt := range []struct {
		limits, requests string
		// want lists, per error, its field and a part of its remedy.
		want [][2]string
	}{
		{limits: "gpu-core=-5", want: [][2]string{{"limits[vernier.dev/gpu-core]", "must be 1 or more"}}},
		{limits: "gpu-core=500m", want: [][2]string{{"limits[vernier.dev/gpu-core]", "must be a whole number of percent: for 0.500 of a GPU write 50"}}},
		{limits: "gpu-core=0.3", want: [][2]string{{"limits[vernier.dev/gpu-core]", "for 0.3 of a GPU write 30"}}},
		{limits: "gpu-core=10 gpu-mem=0.255", want: [][2]string{{"limits[vernier.dev/gpu-mem]", "for 0.255 of a GPU write 26"}}},
		{limits: "gpu-core=10 gpu=0.5", want: [][2]string{{"limits[vernier.dev/gpu]", "must be a whole number: the smallest step is 1"}}},
		{limits: "gpu-mem=10Gi", want: [][2]string{{"limits[vernier.dev/gpu-mem]", "write vernier.dev/gpu-mem-mib: 10240"}}},
		{limits: "gpu-mem=10G", want: [][2]string{{"limits[vernier.dev/gpu-mem]", "write vernier.dev/gpu-mem-mib: 9537"}}},
		{limits: "gpu-core=30.5", want: [][2]string{{"limits[vernier.dev/gpu-core]", "must be a whole number"}}},
		{limits: "gpu-core=1601", want: [][2]string{{"limits[vernier.dev/gpu-core]", "from 1 to 1600"}}},
		{limits: "gpu-core=9e30", want: [][2]string{{"limits[vernier.dev/gpu-core]", "from 1 to 1600"}}},
		{limits: "gpu-core=10 gpu=17", want: [][2]string{{"limits[vernier.dev/gpu]", "from 1 to 16"}}},
		{limits: "gpu-core=10 gpu-mem-mib=9223372036854775807", want: [][2]string{{"limits[vernier.dev/gpu-mem-mib]", "from 1 to"}}},
		{limits: "gpu=2", want: [][2]string{{"limits[vernier.dev/gpu-core]", "add vernier.dev/gpu-core"}}},
		{limits: "gpu-core=10 gpu-mem=10 gpu-mem-mib=1024", want: [][2]string{{"limits[vernier.dev/gpu-mem-mib]", "keep one of the two"}}},
		{limits: "gpu-core=250 gpu=2", want: [][2]string{{"limits[vernier.dev/gpu]", "raise this to 3, or ask for vernier.dev/gpu-core 200 or less"}}},
		{limits: "gpu-core=30 gpu-mem=150", want: [][2]string{{"limits[vernier.dev/gpu-mem]", "ask for 100 or less, or set vernier.dev/gpu to 2"}}},
		{limits: "gpu-mem=101", want: [][2]string{{"limits[vernier.dev/gpu-mem]", "set vernier.dev/gpu to 2"}}},
		{limits: "gpu-core=101", want: [][2]string{{"limits[vernier.dev/gpu-core]", "over 2. Ask for 100 or 102, or for 100 or less of one GPU"}}},
		{limits: "gpu-core=2 gpu=3", want: [][2]string{{"limits[vernier.dev/gpu-core]", "over 3 GPUs: ask for 3"}}},
		{limits: "gpu-core=299 gpu=3", want: [][2]string{{"limits[vernier.dev/gpu-core]", "ask for 297 or 300"}}},
		{limits: "gpu-core=40 gpu-mem=30 gpu=4", want: [][2]string{{"limits[vernier.dev/gpu-mem]", "ask for 28 or 32"}}},
		{limits: "gpu-core=40 gpu-mem-mib=1001 gpu=2", want: [][2]string{{"limits[vernier.dev/gpu-mem-mib]", "ask for 1000 or 1002"}}},
		{limits: "gpu-core=41 gpu-mem=31 gpu=2", want: [][2]string{
			{"limits[vernier.dev/gpu-core]", "ask for 40 or 42"}, {"limits[vernier.dev/gpu-mem]", "ask for 30 or 32"}}},
		{limits: "gpu-cores=10", want: [][2]string{{"limits[vernier.dev/gpu-cores]", `"vernier.dev/gpu-core"`}}},
		{limits: "gpu-cores=10", want: [][2]string{{"limits[vernier.dev/gpu-cores]", "or of a GPUClass: vernier.dev/gpu-gold, vernier.dev/gpu-silver"}}},
		{limits: "gpu-cores=10", want: [][2]string{{"limits[vernier.dev/gpu-cores]", "Did you mean vernier.dev/gpu-core?"}}},
		{limits: "gpu-glod=1", want: [][2]string{{"limits[vernier.dev/gpu-glod]", "Did you mean vernier.dev/gpu-gold?"}}},
		{limits: "gpu-platinum=1", want: [][2]string{{"limits[vernier.dev/gpu-platinum]", "admitted within seconds"}}},
		{requests: "gpu-cores=10", want: [][2]string{{"requests[vernier.dev/gpu-cores]", `"vernier.dev/gpu-core"`}}},
		{requests: "gpu-core=10", want: [][2]string{{"requests[vernier.dev/gpu-core]", "move the line to limits"}}},
		{limits: "gpu-core=10", requests: "gpu-core=5", want: [][2]string{{"requests[vernier.dev/gpu-core]", "must equal the limit 10"}}},
		{limits: "gpu-core=151", want: [][2]string{{"limits[vernier.dev/gpu-core]", "more than 100 is spread over several GPUs, and this does not divide evenly over 2. Ask for 150 or 152, or for 100 or less of one GPU"}}},
		{limits: "gpu-mem-mib=10Gi", want: [][2]string{{"limits[vernier.dev/gpu-mem-mib]", "this is MiB: write 10240"}}},
		{limits: "gpu-mem-mib=1Ki", want: [][2]string{{"limits[vernier.dev/gpu-mem-mib]", "this is MiB: write 1"}}},
		{limits: "gpu-mem-mib=10G", want: [][2]string{{"limits[vernier.dev/gpu-mem-mib]", "this is MiB, for so many bytes write 9537"}}},
		{limits: "idle-core=30", want: [][2]string{{"limits[vernier.dev/idle-mem-mib]", "vernier.dev/idle-core asks for an idle slice"}}},
		{limits: "idle-mem-mib=30", want: [][2]string{{"limits[vernier.dev/idle-core]", "vernier.dev/idle-mem-mib asks for an idle slice"}}},
		{limits: "idle-core=101 idle-mem-mib=10Gi", want: [][2]string{{"limits[vernier.dev/idle-mem-mib]", "this is MiB: write 10240"}}},
		{limits: "idle-core=101 idle-mem-mib=10", want: [][2]string{{"limits[vernier.dev/idle-core]", "ask for 100 or less"}}},
		{limits: "idle-core=0.3 idle-mem-mib=10", want: [][2]string{{"limits[vernier.dev/idle-core]", "for 0.3 of a GPU write 30"}}},
		{limits: "idle-core=1 idle-mem-mib=10G", want: [][2]string{{"limits[vernier.dev/idle-mem-mib]", "this is MiB, for so many bytes write 9537"}}},
		{limits: "idle-core=30 idle-mem-mib=10 gpu-core=5 gpu=1", want: [][2]string{
			{"limits[vernier.dev/gpu-core]", "nothing that is promised"}, {"limits[vernier.dev/gpu]", "remove it, or the idle resources"}}},
		// Everything that is wrong is said at once.
		{limits: "gpu-core=151 gpu-x=1 gpu-mem=-1", want: [][2]string{
			{"limits[vernier.dev/gpu-x]", "supported values"}, {"limits[vernier.dev/gpu-mem]", "1 or more"}, {"limits[vernier.dev/gpu-core]", "Ask for 150 or 152"}}},
		{limits: "gpu-core=300 gpu-mem=500 gpu=2 gpu-x=1", want: [][2]string{
			{"limits[vernier.dev/gpu-x]", "supported values"}, {"limits[vernier.dev/gpu]", "raise this to 3"}, {"limits[vernier.dev/gpu-mem]", "set vernier.dev/gpu to 5"}}},
		{limits: "gpu-core=-1 gpu-mem=-1 gpu-x=1", requests: "gpu-mem-mib=5", want: [][2]string{
			{"limits[vernier.dev/gpu-x]", "supported values"}, {"requests[vernier.dev/gpu-mem-mib]", "move the line"},
			{"limits[vernier.dev/gpu-core]", "1 or more"}, {"limits[vernier.dev/gpu-mem]", "1 or more"}}},
	} {
		t.Run(tt.limits+"|"+tt.requests, func(t *testing.T) {
			r := corev1.ResourceRequirements{Limits: list(t, tt.limits), Requests: list(t, tt.requests)}
			if !Asks(r) {
				t.Error("Asks says no")
			}
			path := field.NewPath("spec", "containers").Index(0).Child("resources")
			_, errs := ShareOf(r, &known, path)
			if len(errs) != len(tt.want) {
				t.Fatalf("got %d errors, want %d: %v", len(errs), len(tt.want), errs)
			}
			for i, want := range tt.want {
				if field := "spec.containers[0].resources." + want[0]; errs[i].Field != field {
					t.Errorf("error %d names %s, want %s", i, errs[i].Field, field)
				}
				if text := errs[i].Error(); !strings.Contains(text, want[1]) {
					t.Errorf("error %q does not say %q", text, want[1])
				}
			}
		})
	}
}

func TestAsks(t *testing.T) {
	for text, want := range map[string]bool{"": false, "cpu=1 nvidia.com/gpu=1": false, "cpu=1 gpu-mem=1": true, "gpu-unknown=1": true,
		"gpu-core=0 gpu-mem-mib=0 gpu-unknown=0": false, "gpu-core=0 gpu-mem=1": true} {
		if got := Asks(corev1.ResourceRequirements{Limits: list(t, text)}); got != want {
			t.Errorf("limits %q: %v, want %v", text, got, want)
		}
		if got := Asks(corev1.ResourceRequirements{Requests: list(t, text)}); got != want {
			t.Errorf("requests %q: %v, want %v", text, got, want)
		}
	}
}

func TestPodLevel(t *testing.T) {
	r := corev1.ResourceRequirements{Limits: list(t, "gpu-core=10 cpu=1"), Requests: list(t, "gpu-core=10 cpu=1")}
	errs := PodLevel(r, field.NewPath("spec", "resources"))
	if len(errs) != 2 || errs[0].Field != "spec.resources.limits[vernier.dev/gpu-core]" ||
		errs[1].Field != "spec.resources.requests[vernier.dev/gpu-core]" ||
		!strings.Contains(errs[0].Error(), "move the line to the container") {
		t.Errorf("got %v", errs)
	}
	if errs := PodLevel(corev1.ResourceRequirements{Limits: list(t, "cpu=1")}, field.NewPath("spec")); len(errs) > 0 {
		t.Errorf("cpu alone: %v", errs)
	}
}

func pod(edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{}, Annotations: map[string]string{}}}
	for _, e := range edits {
		e(p)
	}
	return p
}

func label(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func native(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(name)} }
}

func TestGroupOf(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want Group
	}{
		"alone":              {pod(), Group{}},
		"native":             {pod(native("g")), Group{Native, "ns", "g"}},
		"coscheduling":       {pod(label(LabelCoscheduling, "g")), Group{Coscheduling, "ns", "g"}},
		"Kueue":              {pod(label(LabelKueue, "g")), Group{Kueue, "ns", "g"}},
		"Kueue, one by one":  {pod(label(LabelKueue, "g"), annotation(AnnotationKueueFast, "true")), Group{}},
		"all of them":        {pod(native("n"), label(LabelCoscheduling, "c"), label(LabelKueue, "k")), Group{Native, "ns", "n"}},
		"two of them":        {pod(label(LabelCoscheduling, "c"), label(LabelKueue, "k")), Group{Coscheduling, "ns", "c"}},
		"Volcano":            {pod(annotation(AnnotationVolcanoGroup, "g")), Group{Volcano, "ns", "g"}},
		"Kueue and Volcano":  {pod(label(LabelKueue, "k"), annotation(AnnotationVolcanoGroup, "v")), Group{Kueue, "ns", "k"}},
		"one by one in one":  {pod(label(LabelKueue, "k"), annotation(AnnotationKueueFast, "true"), annotation(AnnotationVolcanoGroup, "v")), Group{Volcano, "ns", "v"}},
		"the longest name":   {pod(annotation(AnnotationVolcanoGroup, strings.Repeat("g", 253))), Group{Volcano, "ns", strings.Repeat("g", 253)}},
		"no object's name":   {pod(annotation(AnnotationVolcanoGroup, strings.Repeat("g", 254))), Group{}},
		"native, of no name": {pod(func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }), Group{}},
	} {
		if got, is := GroupOf(tt.pod); got != tt.want || is != (tt.want != Group{}) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, is, tt.want)
		}
	}
}
