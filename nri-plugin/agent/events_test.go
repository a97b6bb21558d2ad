// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"vernier.dev/vernier/nri-plugin/mode"
)

// The admission policy vernier-node-events lets the node's token write no other events. One
// that repeats is one event with a count, as client-go makes it.
func TestEventsNameTheNode(t *testing.T) {
	w := written{make(chan *eventsv1.Event, 8), make(chan *eventsv1.Event, 8)}
	broadcaster := events.NewBroadcaster(nodeSink{w, reportingInstance("gpu-1")})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := reporter{broadcaster.NewRecorder(scheme.Scheme, "vernier-node")}
	for range 3 {
		r.warnOf(mode.Container{Pod: "uid", Owner: "team/pod", Name: "main"}, "MPSServerFault", "its work has ended")
	}
	if e := next(t, w.made); e.ReportingController != "vernier-node" || e.ReportingInstance != "gpu-1" {
		t.Errorf("written by %s of %s, want vernier-node of gpu-1", e.ReportingController, e.ReportingInstance)
	}
	if again := next(t, w.changed); again.Series == nil {
		t.Errorf("the second time it is %+v, want a series", again)
	}
	if n := len(w.made); n > 0 {
		t.Errorf("%d events more", n)
	}
}

func TestReportingInstance_WhenNameIsLong_IsCut(t *testing.T) {
	if got := reportingInstance(strings.Repeat("n", 253)); len(got) != 128 {
		t.Errorf("%d characters, want as many as the API server takes", len(got))
	}
}
