// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/must"
)

var (
	profiles = flag.String("profiles", "", "a folder for CPU profiles of the API server, one for each arm of each round, to read with go tool pprof")
	profiled = map[arm]int{}
)

// profileSeconds is about as long as an arm takes.
const profileSeconds = 8

// profile takes a profile of the API server while an arm runs, if wanted, and returns
// what waits for its end.
func (a arm) profile(b *testing.B) (end func()) {
	b.Helper()
	if *profiles == "" {
		return func() {}
	}
	must.Do(b, os.MkdirAll(*profiles, 0o755))
	done := make(chan error, 1)
	profiled[a]++
	file := filepath.Join(*profiles, fmt.Sprintf("%s-%d.pprof", a, profiled[a]))
	go func() {
		text, err := kube.Discovery().RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", fmt.Sprint(profileSeconds)).DoRaw(b.Context())
		if err == nil {
			err = os.WriteFile(file, text, 0o644)
		}
		done <- err
	}()
	return func() {
		must.Do(b, <-done)
	}
}
