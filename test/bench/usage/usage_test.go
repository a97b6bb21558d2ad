// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

const head = "t_s,pod,duty_percent,memory_mib\n"

// write makes a folder with a trace.
func write(t *testing.T, text string) string {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	must.Get(w.Write([]byte(text)))(t)
	must.Do(t, w.Close())
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "pods.csv.gz"), packed.Bytes(), 0o600))
	return folder
}

// Pods are sorted by name and their samples by time, and memory that was not sampled is that of before.
func TestLoad(t *testing.T) {
	got := must.Get(Load(write(t, head+"0,b,1.5,10\n57,b,2,\n57,a,3,30\n0,a,4,40\n")))(t)
	at := 57 * time.Second
	want := []Pod{{"a", []Point{{0, 4, 40}, {at, 3, 30}}}, {"b", []Point{{0, 1.5, 10}, {at, 2, 10}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLoad_WhenATraceIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"t,pod\n":                 "line 1: the columns",
		head + "1,a,101,5\n":      "line 2: column 3",
		head + "1,a,NaN,5\n":      "line 2: column 3",
		head + "1,a,5,\n-1,a,,\n": "line 3: column 1",
		head + "1,a,5,1e30\n":     "line 2: column 4",
		head + "1,a\n":            "wrong number of fields",
	} {
		if _, err := Load(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
