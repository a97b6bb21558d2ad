// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is kept for a pod stays true when it is read later.
func TestReserved(t *testing.T) {
	const who = "ends pods of lower priority: reserved on node n GPU 0, GPU 3, node m GPU 1 and 2 more, waits for pods node, GPU 7 to end"
	for _, tt := range []struct {
		message string
		later   time.Duration
		want    string
		gpus    string
	}{
		{who + ", about 40s", 0, who + ", about 40s from now", "[{n 0} {n 3} {m 1}]"},
		{who + ", about 1m30s", 50 * time.Second, who + ", about 40s from now", "[{n 0} {n 3} {m 1}]"},
		{who + ", about 40s", time.Minute, who + ", which was to be 20s ago", "[{n 0} {n 3} {m 1}]"},
		{who, time.Hour, who, "[{n 0} {n 3} {m 1}]"},
		{"reserved on node n GPU 2, which is being freed", time.Hour, "reserved on node n GPU 2, which is being freed", "[{n 2}]"},
		{"reserved on node n GPU 2, waits for pods a, ab...", time.Hour, "reserved on node n GPU 2, waits for pods a, ab...", "[{n 2}]"},
		{"words of others, about GPU 5", 0, "words of others, about GPU 5", "[]"},
	} {
		r := ReservedOf(&corev1.Event{Message: tt.message, LastTimestamp: metav1.Unix(100, 0)})
		if got, gpus := r.At(time.Unix(100, 0).Add(tt.later)), fmt.Sprint(r.GPUs()); got != tt.want || gpus != tt.gpus {
			t.Errorf("%q after %v: %q on %s, want %q on %s", tt.message, tt.later, got, gpus, tt.want, tt.gpus)
		}
	}
}
