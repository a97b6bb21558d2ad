// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	eventsv1 "k8s.io/api/events/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"vernier.dev/vernier/api/v1alpha1"
)

// newRecorder makes a recorder of events that name this node as reportingInstance: an
// admission policy lets the node's token write no others. It records until ctx ends.
func newRecorder(ctx context.Context, mgr manager.Manager, node string) (events.EventRecorder, error) {
	client, err := eventsclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("setting up events: %w", err)
	}
	broadcaster := events.NewBroadcaster(nodeSink{&events.EventSinkImpl{Interface: client}, reportingInstance(node)})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("setting up events: %w", err)
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return broadcaster.NewRecorder(mgr.GetScheme(), v1alpha1.NodeServiceAccount), nil
}

// maxInstance is how many bytes the API server takes as an event's reportingInstance.
const maxInstance = 128

// reportingInstance is the node's name, as far as it fits. The admission policy
// vernier-node-events cuts it likewise.
func reportingInstance(node string) string { return node[:min(len(node), maxInstance)] }

// nodeSink writes events under a reportingInstance of its own; client-go's recorder takes the
// hostname, which is the pod's.
type nodeSink struct {
	events.EventSink
	instance string
}

func (s nodeSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	own := e.DeepCopy()
	own.ReportingInstance = s.instance
	return renamed(e)(s.EventSink.Create(ctx, own))
}

func (s nodeSink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	own := e.DeepCopy()
	own.ReportingInstance = s.instance
	return renamed(e)(s.EventSink.Update(ctx, own))
}

// Patch needs no change of the patch, which is of the series only.
func (s nodeSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	return renamed(e)(s.EventSink.Patch(ctx, e, patch))
}

// renamed gives the server's answer the recorder's own reportingInstance, by which it finds
// repeated events again.
func renamed(e *eventsv1.Event) func(*eventsv1.Event, error) (*eventsv1.Event, error) {
	return func(answer *eventsv1.Event, err error) (*eventsv1.Event, error) {
		if answer != nil {
			answer = answer.DeepCopy()
			answer.ReportingInstance = e.ReportingInstance
		}
		return answer, err
	}
}
