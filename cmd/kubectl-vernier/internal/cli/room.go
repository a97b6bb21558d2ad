// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/waiting"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
	"vernier.dev/vernier/webhook/fleet"
)

// warnings hands the API server's warnings to who waits for them in the context of a request.
type warnings struct{}

type warned struct{}

func (warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _ string, text string) {
	if all, waits := ctx.Value(warned{}).(*[]string); waits {
		*all = append(*all, text)
	}
}

// createDry is a dry run of the pod's creation, and what the webhook says of room. Nobody needs more
// than the right to create pods for that.
func createDry(ctx context.Context, api client.Client, pod *corev1.Pod) (rooms []fleet.Room, err error) {
	var all []string
	err = api.Create(context.WithValue(ctx, warned{}, &all), pod, client.DryRunAll)
	for _, text := range all {
		if room, is := fleet.ParseRoom(text); is {
			rooms = append(rooms, room)
		}
	}
	return rooms, err
}

// onlyDevices is what the webhook's answer leaves out.
const onlyDevices = "The answer is of GPUs only, and for each object alone: node selectors, taints, CPU and room that is reserved for others were not asked."

// copyOf is a pod like that, to be created in its namespace.
func copyOf(pod *corev1.Pod, prefix string) *corev1.Pod {
	made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: prefix, Labels: pod.Labels, Annotations: pod.Annotations}}
	pod.Spec.DeepCopyInto(&made.Spec)
	return made
}

// room asks the webhook what pods like one that waits lack.
func (c *command) room(ctx context.Context, r client.Reader) func(*corev1.Pod) (waiting.Verdict, bool) {
	return func(pod *corev1.Pod) (lacks waiting.Verdict, known bool) {
		api, is := r.(client.Client)
		if !is {
			return lacks, false
		}
		// What keeps a copy away, such as a quota that is used up, does not keep the pod away.
		rooms, err := createDry(ctx, api, copyOf(pod, "why-"))
		if err != nil || len(rooms) == 0 {
			return lacks, false
		}
		last := rooms[len(rooms)-1]
		return waiting.Verdict{Cause: last.Cause, Text: last.Why}, true
	}
}

// namesNone is a resource as of a class that nobody has made: the webhook refuses it, and names those
// that there are.
var namesNone = v1alpha1.ClassResource("none-of-that-name")

// roomOfClasses asks the webhook for the classes and the room for a unit of each, for who may read
// neither classes nor ledgers.
func (c *command) roomOfClasses(ctx context.Context, r client.Reader, why error) error {
	api, is := r.(client.Client)
	if c.ns == "" || !is || !c.output.forPeople() {
		return why
	}
	one := corev1.ResourceList{namesNone: resource.MustParse("1")}
	rooms, err := createDry(ctx, api, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, GenerateName: "classes-"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Limits: one, Requests: one}}}}})
	if len(rooms) == 0 {
		return fmt.Errorf("%w\nthe webhook has not named any class either, in answer to a dry run in namespace %s: %w", why, c.ns, err)
	}
	fmt.Fprintf(whole(c.errOut), "left out: models, units and capacity; %s\n%s\n", showsLedgers, onlyDevices)
	return c.output.print(c.out, c.errOut, nil, section{table: view.RoomTable(rooms)})
}
