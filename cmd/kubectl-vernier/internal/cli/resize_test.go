// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/resizing"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// The command writes the annotation, and ends with what the condition says of that very document.
func TestResize(t *testing.T) {
	const shares = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":50,"memMiB":8000},"side":{"gpus":1,"core":10,"memMiB":100}}}`
	condition := func(reason, message string) corev1.PodCondition {
		return corev1.PodCondition{Type: v1alpha1.PodConditionResize, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	for name, tt := range map[string]struct {
		line string
		// before is the pod's condition, answer the allocator's to each document.
		before *corev1.PodCondition
		answer func(text string) corev1.PodCondition
		says   string
		fails  bool
	}{
		"in force": {"p -c main --core 20 --mem-mib 4000", nil, func(text string) corev1.PodCondition {
			return condition(resizing.ReasonDone, text)
		}, "pod team-a/p: main to 20 %, 4000 MiB: in force", false},
		"infeasible": {"pod/p -c side --mem-mib 10", nil, func(text string) corev1.PodCondition {
			return condition(resizing.ReasonInfeasible, text+": 90 MiB are in use")
		}, "Infeasible: side to 10 MiB: 90 MiB are in use", true},
		"infeasible before": {"p -c side --mem-mib 10", ptr.To(condition(resizing.ReasonInfeasible, "side to 10 MiB: 90 MiB are in use")), func(text string) corev1.PodCondition {
			return condition(resizing.ReasonDone, text)
		}, "side to 10 MiB: in force", false},
		"deferred": {"p -c side --core 10", nil, func(text string) corev1.PodCondition {
			return condition(resizing.ReasonDeferred, text+": device full")
		}, "not resized after 1m0s: Deferred: side to 10 %: device full", true},
		"of another document": {"p -c side --core 10", nil, func(string) corev1.PodCondition {
			return condition(resizing.ReasonDone, "main to 3 %")
		}, "not resized after 1m0s", true},
		"not waited for":     {"p -c side --core 10 --timeout 0", nil, nil, "", false},
		"which container":    {"p --core 10", nil, nil, "say which with -c", true},
		"unknown container":  {"p -c other --core 10", nil, nil, "container other asks for no share", true},
		"beyond the request": {"p -c main --core 51", nil, nil, "can't have more", true},
		"no amount":          {"p -c main", nil, nil, "say --core, --mem-mib or both", true},
		"not a number":       {"p -c main --core 1.5", nil, nil, "--core:", true},
		"no pod":             {"", nil, nil, "name one pod", true},
		"unknown pod":        {"q --core 10", nil, nil, "not found", true},
		"all namespaces":     {"p --core 10 -A", nil, nil, "about one pod", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := gated("team-a", "p", time.Minute, shares)
			if tt.before != nil {
				p.Status.Conditions = []corev1.PodCondition{*tt.before}
			}
			api, clock := fakeClient(t, p), now
			var out bytes.Buffer
			c := &command{flags: genericclioptions.NewConfigFlags(true), out: &out, errOut: &out, now: func() time.Time { return clock }}
			c.connect = func() (client.Client, error) { return api, nil }
			c.after = func(d time.Duration) <-chan time.Time {
				clock = clock.Add(d)
				pod := &corev1.Pod{}
				must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(p), pod))
				to := must.Get(podrequest.ResizeOf(pod))(t)
				now := condition(resizing.ReasonDone, "no resize is asked for any more")
				if to != nil {
					now = tt.answer(to.String())
				}
				if is := resizing.ConditionOf(pod); is == nil || is.Message != now.Message {
					pod.Status.Conditions = []corev1.PodCondition{now}
					must.Do(t, api.Status().Update(t.Context(), pod))
				}
				at := make(chan time.Time, 1)
				at <- clock
				return at
			}
			root := c.root()
			root.SetArgs(append([]string{"resize", "-n", "team-a"}, strings.Fields(tt.line)...))
			err := root.ExecuteContext(t.Context())
			text := out.String()
			if err != nil {
				text += err.Error()
			}
			if (err != nil) != tt.fails || !strings.Contains(text, tt.says) {
				t.Errorf("%q, error %t; want %q, %t", text, err != nil, tt.says, tt.fails)
			}
		})
	}
}
