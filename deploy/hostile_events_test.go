// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// Nobody signs an event as a part of Vernier but that part, in whichever of the two APIs and of
// their fields, and nobody changes what a part has written.
func TestHostileEventAuthors(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "rbac/node.yaml", "admission/node-policy.yaml", "admission/events-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own}}
	must.Do(t, admin.Create(t.Context(), node))
	// Of whatever rights: admission alone is in the way.
	tenant := apiserver.Client(t, apiserver.As(cfg, "tenant", "system:masters"))
	namesake := apiserver.Client(t, apiserver.As(cfg, "system:serviceaccount:tenant:vernier-allocator", "system:masters"))
	unprefixed := apiserver.Client(t, apiserver.As(cfg, v1alpha1.AllocatorServiceAccount, "system:masters"))
	allocator := apiserver.Client(t, apiserver.AsServiceAccount(cfg, v1alpha1.AllocatorServiceAccount))
	agent := apiserver.Client(t, stolen(t, cfg, v1alpha1.NodeServiceAccount, nodeOf(t, admin, own)))

	of := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: "p", UID: "uid"}
	meta := metav1.ObjectMeta{GenerateName: "e-", Namespace: metav1.NamespaceDefault}
	core := func(source, reporting string) *corev1.Event {
		e := &corev1.Event{ObjectMeta: meta, InvolvedObject: of, Reason: "VernierWaiting", Type: corev1.EventTypeWarning, Message: "m",
			Source: corev1.EventSource{Component: source}, ReportingController: reporting, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now()}
		if source == "" {
			e.EventTime, e.ReportingInstance, e.Action = metav1.NowMicro(), own, "Waiting"
			e.FirstTimestamp, e.LastTimestamp = metav1.Time{}, metav1.Time{}
		}
		return e
	}
	group := func(reporting, deprecated string) *eventsv1.Event {
		return &eventsv1.Event{ObjectMeta: meta, Regarding: of, Reason: "VernierWaiting", Type: corev1.EventTypeWarning, Action: "Waiting", EventTime: metav1.NowMicro(),
			ReportingController: reporting, ReportingInstance: own, DeprecatedSource: corev1.EventSource{Component: deprecated}}
	}
	const refused = "may be written by the service account of that part only"
	const unset = "needs to be unset" // says the API server itself
	for name, tt := range map[string]struct {
		as    client.Client
		event client.Object
		want  string
	}{
		"a tenant's own":                     {tenant, core("trainer", ""), ""},
		"a tenant's own, by controller":      {tenant, core("", "example.com/trainer"), ""},
		"a tenant's own, in the other API":   {tenant, group("example.com/trainer", ""), ""},
		"by source":                          {tenant, core("vernier-allocator", ""), refused},
		"by controller":                      {tenant, core("", "vernier-allocator"), refused},
		"by controller beside a source":      {tenant, core("trainer", "vernier-allocator"), refused},
		"by controller, in the other API":    {tenant, group("vernier-allocator", ""), refused},
		"by source, in the other API":        {tenant, group("example.com/trainer", "vernier-allocator"), unset},
		"of an agent":                        {tenant, core("vernier-node", ""), refused},
		"of a part that is none yet":         {tenant, core("vernier-preemptor", ""), refused},
		"by an account of the same name":     {namesake, core("vernier-allocator", ""), refused},
		"by a user of the same name":         {unprefixed, core("vernier-allocator", ""), refused},
		"the allocator's":                    {allocator, core("vernier-allocator", "vernier-allocator"), ""},
		"the allocator's, in the other API":  {allocator, group("vernier-allocator", ""), ""},
		"the allocator's, as its pod":        {allocator, core("vernier-allocator-5d8f9c-x2x4z_0a1b", "vernier-allocator-5d8f9c-x2x4z_0a1b"), ""},
		"an agent's, by the allocator":       {allocator, core("vernier-node", ""), refused},
		"the agent's":                        {agent, group("vernier-node", ""), ""},
		"the allocator's, by an agent":       {agent, group("vernier-node", "vernier-allocator"), unset},
		"the allocator's, by the allocators": {allocator, core("vernier-allocators", ""), refused},
	} {
		expect(t, name, tt.as.Create(t.Context(), tt.event, client.DryRunAll), tt.want)
	}

	theirs, mine := core("vernier-allocator", "vernier-allocator"), core("trainer", "")
	expect(t, "the allocator's", allocator.Create(t.Context(), theirs), "")
	expect(t, "a tenant's", tenant.Create(t.Context(), mine), "")
	patch := func(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }
	another := theirs.DeepCopy()
	another.Message = "pay here"
	inGroup := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: theirs.Namespace, Name: theirs.Name}}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"another text":                        {tenant.Patch(t.Context(), theirs.DeepCopy(), patch(`{"message":"pay here"}`), client.DryRunAll), refused},
		"another text and author":             {tenant.Patch(t.Context(), theirs.DeepCopy(), patch(`{"message":"pay here","source":{"component":"a"},"reportingComponent":"a"}`), client.DryRunAll), refused},
		"another text, by an update":          {tenant.Update(t.Context(), another, client.DryRunAll), refused},
		"how often it came, in the other API": {tenant.Patch(t.Context(), inGroup, patch(`{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`), client.DryRunAll), refused},
		"one's own as if by the allocator":    {tenant.Patch(t.Context(), mine.DeepCopy(), patch(`{"source":{"component":"vernier-allocator"}}`), client.DryRunAll), refused},
		"one's own":                           {tenant.Patch(t.Context(), mine.DeepCopy(), patch(`{"message":"mine"}`), client.DryRunAll), ""},
		"how often it came, by the allocator": {allocator.Patch(t.Context(), theirs.DeepCopy(), patch(`{"count":2}`), client.DryRunAll), ""},
	} {
		expect(t, name, tt.err, tt.want)
	}

	// As the allocator's recorder writes them.
	kube := must.Get(kubernetes.NewForConfig(apiserver.AsServiceAccount(cfg, v1alpha1.AllocatorServiceAccount)))(t)
	sink := &typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")}
	broadcaster := record.NewBroadcaster(record.WithSleepDuration(time.Millisecond))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(sink)
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "recorded", UID: "uid"}}
	recorder := broadcaster.NewRecorder(admin.Scheme(), corev1.EventSource{Component: v1alpha1.AllocatorServiceAccount})
	for range 2 {
		recorder.Event(pod, corev1.EventTypeNormal, "VernierPlaced", "on node n0")
	}
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		var list corev1.EventList
		err := admin.List(ctx, &list)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == "recorded" && e.Count == 2 }), err
	})
	if err != nil {
		t.Errorf("the allocator's recorder has not written an event and its repetition: %v", err)
	}
}
