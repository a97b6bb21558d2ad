// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const nodesCSV = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,32768,2,T4\nn1,64000,262144,8,G2\n"

func TestLoad(t *testing.T) {
	pods := "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\na,1000,1024,1,460,,LS\nb,4000,8192,2,1000,T4|G2,BE\nc,1000,1024,1,460,,BE\nd,500,512,0,0,,BE\n"
	w := must.Get(Load(write(t, "nodes", nodesCSV), write(t, "pods", pods)))(t)
	if got, want := w.Capacity(), int64(10*Whole); got != want {
		t.Errorf("capacity %d, want %d", got, want)
	}
	if want := []int{0, 1, 0, 2}; !slices.Equal(w.Pods, want) {
		t.Errorf("pods %v, want %v", w.Pods, want)
	}
	if got, want := w.Classes[1], (Class{CPU: 4000, Mem: 8192, GPUs: 2, Milli: 1000, Spec: "T4|G2"}); got != want {
		t.Errorf("class %+v, want %+v", got, want)
	}
	var kinds []string
	for i := range w.Classes {
		kinds = append(kinds, w.Classes[i].Kind())
	}
	if want := []string{"shared", "2-gpu", "cpu"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
}

// A list of pods without models, as some variants are.
func TestLoadWithoutModels(t *testing.T) {
	pods := "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,460\n"
	if _, err := Load(write(t, "nodes", nodesCSV), write(t, "pods", pods)); err != nil {
		t.Error(err)
	}
}

func TestLoadNamesTheFault(t *testing.T) {
	head := "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
	good := head + "a,1000,1024,1,460\n"
	for _, tt := range []struct{ nodes, pods, want string }{
		{nodesCSV, good + "b,x,1024,1,460\n", `line 3: column cpu_milli: "x" is not a count`},
		{nodesCSV, good + "\nb,1,-5,1,460\n", `line 4: column memory_mib: "-5" is not a count`},
		{nodesCSV, good + "b,1,1,1,\n", `line 3: column gpu_milli: "" is not a count`},
		{nodesCSV, good + "b,1,1,0.5,500\n", `line 3: column num_gpu: "0.5" is not a count`},
		{nodesCSV, good + "b,NaN,1,1,500\n", `line 3: column cpu_milli: "NaN" is not a count`},
		{nodesCSV, good + "b,1e30,1,1,500\n", "line 3: column cpu_milli: 1e30 is more than"},
		{nodesCSV, good + "b,1,1,1,1001\n", "line 3: column gpu_milli: 1001 is more than"},
		{nodesCSV, good + "b,1,1,0,500\n", "line 3: column gpu_milli: 500 of each of 0 devices"},
		{nodesCSV, good + "b,1,1,1,0\n", "line 3: column gpu_milli: 0 of each of 1 devices"},
		{nodesCSV, good + "b,1,1\n", "line 3: column num_gpu: the line ends"},
		{nodesCSV, good + "b,1,1,1,1,1\n", "line 3: column 6: the first line names only 5"},
		{nodesCSV, good + "b,\"1,1,1,1\n", "line 3"},
		{nodesCSV, head + "a,1,1,0,0\n", "no pod asks for a GPU"},
		{nodesCSV, "name,cpu_milli\n", "line 1: no column memory_mib"},
		{nodesCSV, "", "line 1: no column cpu_milli"},
		{"sn,cpu_milli,memory_mib,gpu,gpu,model\nn0,8000,32768,2,4,T4\n", good, "line 1: two columns are called gpu"},
		{"sn,cpu_milli,memory_mib,gpu,model\nn0,8000,32768,65,T4\n", good, "line 2: column gpu: 65 is more than 64"},
		{"sn,cpu_milli,memory_mib,gpu,model\nn0,8000,32768,0,\n", good, "no node has a GPU"},
	} {
		_, err := Load(write(t, "nodes", tt.nodes), write(t, "pods", tt.pods))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// As other programs write them: a byte order mark, blanks, counts with a point.
func TestLoadIsLenient(t *testing.T) {
	pods := "\ufeffname, cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\r\na, 1000.0,1024,1.0,460, T4 | G2|\r\n"
	w := must.Get(Load(write(t, "nodes", nodesCSV), write(t, "pods", pods)))(t)
	if got, want := w.Classes[0], (Class{CPU: 1000, Mem: 1024, GPUs: 1, Milli: 460, Spec: "T4|G2|"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestArrivals(t *testing.T) {
	w := &Workload{
		Nodes:   []Node{{GPUs: 4}},
		Classes: []Class{{GPUs: 1, Milli: 500}, {GPUs: 1, Milli: 1000}},
		Pods:    []int{0, 1, 0},
	}
	a := w.Arrivals(1, 1.3)
	demand := 0
	for _, c := range a {
		demand += w.Classes[c].Milli
	}
	if last := w.Classes[a[len(a)-1]].Milli; demand < 5200 || demand-last >= 5200 {
		t.Errorf("arrivals ask for %d, the last for %d: want just 5200", demand, last)
	}
	first := slices.Clone(a[:3])
	slices.Sort(first)
	if !slices.Equal(first, []int{0, 0, 1}) {
		t.Errorf("the trace's own pods come first, got %v", a)
	}
	if !slices.Equal(a, w.Arrivals(1, 1.3)) || slices.Equal(w.Arrivals(2, 9), w.Arrivals(3, 9)) {
		t.Error("the seed alone decides the order")
	}
}

func TestAllows(t *testing.T) {
	for _, tt := range []struct {
		spec, model string
		want        bool
	}{{"", "T4", true}, {"T4", "T4", true}, {"G2|T4", "T4", true}, {"G2", "T4", false}, {"|", "T4", true}, {"V100M16", "V100", false}} {
		if got := Allows(tt.spec, tt.model); got != tt.want {
			t.Errorf("%q allows %s: %v", tt.spec, tt.model, got)
		}
	}
}
