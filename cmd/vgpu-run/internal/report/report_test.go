// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/cmd/vgpu-run/internal/session"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

func example() Report {
	const a, b = "GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
	limits := layout.Limits{Devices: []layout.DeviceLimit{{UUID: a, Core: 30, MemoryBytes: 1 << 30}, {UUID: b, MemoryBytes: 5 << 20}}}
	usage := layout.Usage{MostProcesses: 2, Devices: []layout.DeviceUsage{
		{UsedBytes: 7, PeakBytes: 12 << 20, MemoryRefusals: 3, Busy: 600 * time.Millisecond, Throttled: 1400 * time.Millisecond, Launches: 42},
		{MemoryRefusals: 1},
	}}
	return New([]string{"train", ">x"}, 137, 2*time.Second, limits, usage, session.Others{Known: true, Worked: map[string]time.Duration{a: 500 * time.Millisecond}})
}

// TestJSON: names and units that programs rely on.
func TestJSON(t *testing.T) {
	const want = `{"command":["train",">x"],"exit_code":137,"wall_ns":2000000000,"processes":2,"devices":[` +
		`{"uuid":"GPU-00112233-4455-6677-8899-aabbccddeeff","core_percent":30,"memory_limit_bytes":1073741824,"memory_used_bytes":7,"memory_peak_bytes":12582912,"memory_refusals":3,"busy_ns":600000000,"throttled_ns":1400000000,"launches":42,"others_ns":500000000},` +
		`{"uuid":"GPU-ffeeddcc-bbaa-9988-7766-554433221100","core_percent":0,"memory_limit_bytes":5242880,"memory_used_bytes":0,"memory_peak_bytes":0,"memory_refusals":1,"busy_ns":0,"throttled_ns":0,"launches":0,"others_ns":0}],"others_known":true}` + "\n"
	var out strings.Builder
	if err := example().JSON(&out); err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
}

func TestTable(t *testing.T) {
	const want = `vgpu-run: train >x: exit code 137 after 2s
DEVICE                                    CORE  DEVICE TIME  SHARE  WAITED  LAUNCHES  MEMORY  LIMIT     REFUSED
GPU-00112233-4455-6677-8899-aabbccddeeff  30%   600ms        30.0%  1.4s    42        12 MiB  1024 MiB  3
GPU-ffeeddcc-bbaa-9988-7766-554433221100  -     -            -      -       -         0 MiB   5 MiB     1
Processes that vgpu-run doesn't limit used 500ms of GPU-00112233-4455-6677-8899-aabbccddeeff (25%). DEVICE TIME may hold a part of it.
`
	var out strings.Builder
	if err := example().Table(&out); err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
	out.Reset()
	r := example()
	r.Processes = 0
	r.OthersBusy, r.AddressSpace = true, 1000
	for _, words := range []string{"No process used CUDA", "systemd-run", "ulimit -v is 1000 KiB"} {
		if err := r.Table(&out); err != nil || !strings.Contains(out.String(), words) {
			t.Errorf("%v\n%s\nwant it to say %s", err, out.String(), words)
		}
	}
}

// TestTable_WhenNVMLSaysNothing: a figure that may hold others' time is said to.
func TestTable_WhenNVMLSaysNothing(t *testing.T) {
	const said = "DEVICE TIME holds their time too"
	for name, test := range map[string]struct {
		known bool
		wall  time.Duration
		want  bool
	}{
		"unknown":           {wall: time.Minute, want: true},
		"known, and nobody": {known: true, wall: time.Minute},
		"too short to know": {wall: time.Second},
	} {
		r := example()
		r.OthersKnown, r.WallNS, r.Devices[0].OthersNS = test.known, test.wall.Nanoseconds(), 0
		var out strings.Builder
		if err := r.Table(&out); err != nil || strings.Contains(out.String(), said) != test.want {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

// TestToFile: an old report stays until a new one is there, whole.
func TestToFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "report"), filepath.Join(dir, "link")
	must.Do(t, errors.Join(os.WriteFile(path, []byte("old"), 0o640), os.Symlink(path, link)))
	holds := func(want string) {
		t.Helper()
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("%v: the file holds %q, want %q", err, got, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	write := must.Get(ToFile(link))(t)
	holds("old")
	if err := write(func(io.Writer) error { return io.ErrShortWrite }); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	holds("old")
	must.Report(t, write(func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }))
	holds("new")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v: the mode is %v", err, info.Mode())
	}
	for _, path := range []string{dir, filepath.Join(dir, "none", "report"), filepath.Join(path, "report")} {
		if _, err := ToFile(path); err == nil {
			t.Errorf("%s is taken", path)
		}
	}
}
