// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestEndOf(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	at := func(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
	limited := func(deadline int64) corev1.PodSpec { return corev1.PodSpec{ActiveDeadlineSeconds: &deadline} }
	tests := []struct {
		name  string
		pod   corev1.Pod
		want  time.Duration // from now
		known bool
	}{
		{"no deadline", corev1.Pod{Status: corev1.PodStatus{StartTime: at(now)}}, 0, false},
		{"not started, with the default grace", corev1.Pod{Spec: limited(600)}, 10*time.Minute + 30*time.Second + Slack, true},
		{"started", corev1.Pod{Spec: limited(600), Status: corev1.PodStatus{StartTime: at(now.Add(-5 * time.Minute))}}, 5*time.Minute + 30*time.Second + Slack, true},
		{"its own grace", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](600), TerminationGracePeriodSeconds: ptr.To[int64](0)}}, 10*time.Minute + Slack, true},
		{"terminating, without a deadline", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: at(now.Add(20 * time.Second))}}, 20*time.Second + Slack, true},
		{"terminating, with one", corev1.Pod{Spec: limited(6000), ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: at(now.Add(20 * time.Second))}}, 20*time.Second + Slack, true},
		{"finished", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, Slack, true},
		{"numbers that overflow", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](math.MaxInt64), TerminationGracePeriodSeconds: ptr.To[int64](math.MaxInt64)}},
			2*math.MaxInt32*time.Second + Slack, true},
		{"numbers below zero", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](math.MinInt64), TerminationGracePeriodSeconds: ptr.To[int64](-1)}}, Slack, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			end, known := EndOf(&tt.pod, now)
			if known != tt.known || known && !end.Equal(now.Add(tt.want)) {
				t.Errorf("%s, %v; want %s, %v", end.Sub(now), known, tt.want, tt.known)
			}
		})
	}
}

func TestMayFill(t *testing.T) {
	until := time.Unix(1000, 0)
	for _, tt := range []struct {
		name       string
		end, until time.Time
		known      bool
		want       bool
	}{
		{"ends before", until.Add(-1), until, true, true},
		{"ends then", until, until, true, false},
		{"ends after", until.Add(1), until, true, false},
		{"its end is not known", time.Time{}, until, false, false},
		{"the room's end is not known", until, time.Time{}, true, false},
	} {
		if got := MayFill(tt.end, tt.known, tt.until); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
