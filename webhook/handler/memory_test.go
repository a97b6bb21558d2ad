// SPDX-License-Identifier: Apache-2.0

// The race detector takes more memory than the webhook has.
//go:build !race

package handler_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/intake"
)

// memory is what the chart gives the webhook.
const memory = 256 << 20

// child starts this test again, in a process of its own, with the arguments and the variable
// by which it knows.
func child(t *testing.T, variable string, arguments ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append(arguments, "-test.fuzzcachedir="+t.TempDir())...)
	cmd.Env = append(os.Environ(), variable, fmt.Sprintf("GOMEMLIMIT=%d", memory))
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("no tests to run")) {
		t.Errorf("%s: %v\n%s", arguments, err, out[max(0, len(out)-4000):])
	}
}

// The fuzz tests, and all bombs, run in a process that has no more memory than the webhook:
// the kernel refuses it more, and Go ends it. Where Go makes inputs up it keeps 100 MiB for
// them besides.
func TestHostileMemory(t *testing.T) {
	const variable = "VERNIER_TEST_LIMIT"
	if limit, err := strconv.ParseUint(os.Getenv(variable), 10, 64); err == nil {
		must.Do(t, unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}))
		t.Run("pods", TestHostilePods)
		return
	}
	child(t, fmt.Sprintf("%s=%d", variable, memory), "-test.run=^(TestHostileMemory|FuzzHandler|FuzzPlugins)$")
	for _, name := range []string{"FuzzHandler", "FuzzPlugins"} {
		child(t, fmt.Sprintf("%s=%d", variable, memory+100<<20), "-test.run=^TestHostileMemory$", "-test.fuzz=^"+name+"$",
			"-test.fuzztime=2000x", "-test.parallel=1")
	}
}

// A flood of the worst bodies, from somebody who reaches the port, is answered within the
// memory that the webhook has.
func TestHostileFlood(t *testing.T) {
	const variable = "VERNIER_TEST_FLOOD"
	if os.Getenv(variable) == "" {
		child(t, variable+"=1", "-test.run=^TestHostileFlood$")
		return
	}
	flood(t)
	status := must.Get(os.ReadFile("/proc/self/status"))(t)
	peak := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
	if kib, err := strconv.Atoi(string(peak[1])); err != nil || kib<<10 > memory {
		t.Errorf("the server had %d KiB of memory at the most, of %d, %v", kib, memory>>10, err)
	}
}

// flood sends as many bodies at once as the server takes in, past the API server, each of
// which becomes as large in memory as a body can.
func flood(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	in := intake.New(intake.Default)
	srv := &http.Server{Handler: in.Handle(ours())}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(in.Listen(l)) }()
	defer func() { srv.Close(); <-ended }()
	review := func(object string) string {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":` + object + `}}`
	}
	// Made once: the clients share the server's memory here.
	bodies := []string{
		review(`{"metadata":{"annotations":{"vernier.dev/mode":"` + strings.Repeat("x", int(intake.Default.MaxBytes)-1000) + `"}}}`),
		review(`{"metadata":{"annotations":{"vernier.dev/mode":"auto"}},"spec":{"containers":[{}` + strings.Repeat(",{}", intake.Default.MaxValues/2-50) + `]}}`),
	}
	post := func(body string) (int, []byte, error) {
		response, err := http.Post("http://"+l.Addr().String(), "application/json", strings.NewReader(body))
		if err != nil {
			return 0, nil, err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		return response.StatusCode, answer, err
	}
	var group errgroup.Group
	var answered atomic.Int32
	for i := range 250 {
		group.Go(func() error {
			// One connection or one byte too many is refused.
			if code, _, err := post(bodies[min(1, i%50)]); err == nil && code == http.StatusOK {
				answered.Add(1)
			}
			return nil
		})
	}
	must.Report(t, group.Wait())
	if answered.Load() == 0 {
		t.Error("no body of the flood was answered")
	}
	code, answer, err := post(review(string(marshal(t, podOf(container("train", "vernier.dev/gpu-core", "30"))))))
	if err != nil || code != http.StatusOK || !bytes.Contains(answer, []byte(`"allowed":true`)) {
		t.Errorf("after the flood: %d %s, %v", code, answer, err)
	}
}
