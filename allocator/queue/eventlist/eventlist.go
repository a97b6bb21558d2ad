// SPDX-License-Identifier: Apache-2.0

// Package eventlist owns how lists of events are read. Everybody may write events, as large as
// the API server takes them and with any time in them. Of each only what is used is kept, and of
// all of them no more than the bounds.
//
// It decides nothing by them.
package eventlist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/api/cause"
)

const (
	// MaxBytes bounds what is read of a list, as JSON, and MaxEvents what is kept of it.
	MaxBytes  = 64 << 20
	MaxEvents = 32768
	// MaxNote is what events.k8s.io takes as an event's text.
	MaxNote = 1024
	// maxName is more than any name of Kubernetes' own has.
	maxName = 256
	// pageSize is kubectl's.
	pageSize = 500
)

// Fields by which the API server filters events. The source is also the reportingComponent of
// those that have no source.
const (
	FieldSource = "source"
	FieldKind   = "involvedObject.kind"
	FieldName   = "involvedObject.name"
	FieldReason = "reason"
	FieldType   = "type"
)

// Read lists the events that have these fields, of a namespace or of all if it is empty. The more
// reports that there are events beyond the bounds.
//
// An event that is kept is about an object of its own namespace. It has its last time in
// LastTimestamp and how often it came in Count. Its author chooses the times: one that is later
// than now counts as the time when the API server got the event.
func Read(ctx context.Context, api rest.Interface, namespace string, which fields.Selector, now time.Time) (events []corev1.Event, more bool, err error) {
	l := &list{now: now, in: io.LimitedReader{N: MaxBytes}}
	options := metav1.ListOptions{FieldSelector: which.String(), Limit: pageSize}
	for {
		body, err := api.Get().NamespaceIfScoped(namespace, namespace != "").Resource("events").
			VersionedParams(&options, scheme.ParameterCodec).
			// An event at a time is decoded of JSON alone.
			SetHeader("Accept", runtime.ContentTypeJSON).Stream(ctx)
		if err != nil {
			return nil, false, err
		}
		options.Continue, err = l.page(body)
		_ = body.Close()
		switch {
		case l.full():
			return l.events, true, nil
		case err != nil:
			return nil, false, fmt.Errorf("reading events: %w", err)
		case options.Continue == "":
			return l.events, false, nil
		}
	}
}

// list is what was read so far.
type list struct {
	in     io.LimitedReader
	now    time.Time
	events []corev1.Event
}

func (l *list) full() bool { return l.in.N == 0 || len(l.events) == MaxEvents }

var errShape = errors.New("the answer is no list")

// page reads a page, and returns where the next one begins. One event at a time is in memory as
// it was sent.
func (l *list) page(body io.Reader) (next string, err error) {
	l.in.R = body
	d := json.NewDecoder(&l.in)
	if err := expect(d, json.Delim('{')); err != nil {
		return "", err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", err
		}
		switch key {
		case "metadata":
			var meta metav1.ListMeta
			if err := d.Decode(&meta); err != nil {
				return "", err
			}
			next = meta.Continue
		case "items":
			if err := l.items(d); err != nil {
				return "", err
			}
		default:
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return "", err
			}
		}
	}
	return next, expect(d, json.Delim('}'))
}

func (l *list) items(d *json.Decoder) error {
	if err := expect(d, json.Delim('[')); err != nil {
		return err
	}
	for d.More() && len(l.events) < MaxEvents {
		var e corev1.Event
		if err := d.Decode(&e); err != nil {
			return err
		}
		// Whose pod this is the namespace says, and nothing else: anybody may write any UID.
		if e.Namespace == e.InvolvedObject.Namespace {
			l.events = append(l.events, trim(&e, l.now))
		}
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = errShape
	}
	return err
}

// maxSkew is how far the reader's clock may be behind that of who wrote an event.
const maxSkew = 5 * time.Minute

// trim is what is used of an event.
func trim(e *corev1.Event, now time.Time) corev1.Event {
	at := lastTime(e)
	switch {
	case at.After(now.Add(maxSkew)):
		at = e.CreationTimestamp.Time
	case at.After(now):
		at = now
	}
	count := e.Count
	if e.Series != nil {
		count = max(count, e.Series.Count)
	}
	of := &e.InvolvedObject
	var annotations map[string]string
	if why := cause.Cause(e.Annotations[cause.Annotation]); why.Known() {
		annotations = map[string]string{cause.Annotation: string(why)}
	}
	return corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: Cut(e.Namespace, maxName), Annotations: annotations},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: Cut(of.APIVersion, maxName), Kind: Cut(of.Kind, maxName),
			Namespace: Cut(of.Namespace, maxName), Name: Cut(of.Name, maxName), UID: Cut(of.UID, maxName),
		},
		Reason: Cut(e.Reason, maxName), Message: Cut(e.Message, MaxNote), Count: count, LastTimestamp: metav1.NewTime(at),
	}
}

// lastTime is when an event last came, in whichever of its three forms.
func lastTime(e *corev1.Event) time.Time {
	latest := e.LastTimestamp.Time
	if e.EventTime.After(latest) {
		latest = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(latest) {
		latest = e.Series.LastObservedTime.Time
	}
	return latest
}

// Cut is a text of at most so many bytes. The rest is not held in memory.
func Cut[T ~string](text T, most int) T {
	if len(text) <= most {
		return text
	}
	return T(strings.ToValidUTF8(string(text[:most-3]), "") + "...")
}
