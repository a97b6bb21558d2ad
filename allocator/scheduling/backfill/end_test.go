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
		{"numbers that overflow", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](math.MaxInt64), TerminationGracePeriodSeconds: ptr.To[int64](math.MaxInt64)}}, 0, false},
		{"a deadline at the end of the lookahead", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](7200), TerminationGracePeriodSeconds: ptr.To[int64](0)}}, 2*time.Hour + Slack, true},
		{"a deadline beyond it", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](7201), TerminationGracePeriodSeconds: ptr.To[int64](0)}}, 0, false},
		{"a deadline that was beyond it", corev1.Pod{Spec: limited(4 * 3600), Status: corev1.PodStatus{StartTime: at(now.Add(-3 * time.Hour))}}, time.Hour + 30*time.Second + Slack, true},
		{"a grace beyond it", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](60), TerminationGracePeriodSeconds: ptr.To[int64](7200)}}, 0, false},
		{"terminating in years", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: at(now.AddDate(3, 0, 0))}}, 0, false},
		{"terminating, and was to have ended", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: at(now.Add(-Slack - time.Second))}}, 0, false},
		{"past its deadline", corev1.Pod{Spec: limited(600), Status: corev1.PodStatus{StartTime: at(now.Add(-time.Hour))}}, 0, false},
		{"numbers below zero", corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](math.MinInt64), TerminationGracePeriodSeconds: ptr.To[int64](-1)}}, Slack, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			end, known := EndOf(&tt.pod, now, 2*time.Hour)
			if known != tt.known || known && !end.Equal(now.Add(tt.want)) {
				t.Errorf("%s, %v; want %s, %v", end.Sub(now), known, tt.want, tt.known)
			}
		})
	}
}

func TestLeaves(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	deleted := func(in time.Duration) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: now.Add(in)}}}
	}
	for name, tt := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"it runs":               {corev1.Pod{}, false},
		"it has failed":         {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, true},
		"is deleted":            {deleted(30 * time.Second), true},
		"is evicted with it":    {deleted(time.Hour), true}, // the API server's clock may be ahead
		"the clocks differ":     {deleted(time.Hour + Slack), true},
		"is deleted with more":  {deleted(time.Hour + Slack + time.Second), false},
		"was to have ended ago": {deleted(-time.Hour), true},
	} {
		if got := Leaves(&tt.pod, now, time.Hour); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
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
