// SPDX-License-Identifier: Apache-2.0

package eventlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/test/objects"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var allocators = fields.Set{FieldSource: "vernier-allocator", FieldKind: "Pod"}.AsSelector()

// pages is an API server that has n events, each made as it is read. asked are the requests, and
// sent is how much was read of the answers.
type pages struct {
	n     int
	event func(i int) *corev1.Event
	asked []string
	sent  int
	begin func()
}

func (p *pages) api() rest.Interface {
	return objects.API(func(r *http.Request) (*http.Response, error) {
		p.asked = append(p.asked, r.URL.RequestURI()+" "+r.Header.Get("Accept"))
		var from, most int
		q := r.URL.Query()
		_, _ = fmt.Sscan(q.Get("continue"), &from)
		if _, err := fmt.Sscan(q.Get("limit"), &most); err != nil {
			return nil, fmt.Errorf("a list without a limit: %w", err)
		}
		to, next := min(from+most, p.n), ""
		if to < p.n {
			next = fmt.Sprint(to)
		}
		return objects.Answer(http.StatusOK, &page{pages: p, at: from, to: to,
			rest: []byte(`{"kind":"EventList","apiVersion":"v1","metadata":{"continue":"` + next + `"},"items":[`)}), nil
	})
}

// page is one of them.
type page struct {
	*pages
	at, to int
	rest   []byte
	ended  bool
}

func (p *page) Read(into []byte) (int, error) {
	if len(p.rest) == 0 {
		switch {
		case p.at < p.to:
			if p.begin != nil {
				p.begin()
			}
			text, err := json.Marshal(p.event(p.at))
			if err != nil {
				return 0, err
			}
			if p.at++; p.at < p.to {
				text = append(text, ',')
			}
			p.rest = text
		case !p.ended:
			p.ended, p.rest = true, []byte("]}")
		default:
			return 0, io.EOF
		}
	}
	n := copy(into, p.rest)
	p.rest, p.sent = p.rest[n:], p.sent+n
	return n, nil
}

func about(namespace, pod string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: pod + ".1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod, UID: types.UID("uid-" + pod)},
		Reason:         "VernierWaiting", Message: "needs 90 % compute", LastTimestamp: metav1.NewTime(now.Add(-time.Minute)),
	}
}

// Events of 1.4 MB cost a reader what one of them takes while it is decoded, and 1 KiB each
// afterwards. A list of 80 at once took a new leader 363 MB, of which it kept 110 MB.
func TestHostileEvents(t *testing.T) {
	large := about("team-a", "p")
	large.Message = strings.Repeat("é", 700<<10)
	large.InvolvedObject.FieldPath, large.Source.Host = strings.Repeat("f", 50<<10), strings.Repeat("h", 50<<10)
	large.Annotations = map[string]string{"a": strings.Repeat("a", 100<<10)}
	text, err := json.Marshal(large)
	if err != nil {
		t.Fatal(err)
	}
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most := live(), uint64(0)
	p := &pages{n: 80, event: func(int) *corev1.Event { return large }}
	p.begin = func() { most = max(most, live()) }
	events, more, err := Read(t.Context(), p.api(), "", allocators, now)
	if err != nil || !more || p.sent > MaxBytes+len(text) || len(events) != MaxBytes/len(text) {
		t.Errorf("%d events, more: %v, %d bytes were read, error %v", len(events), more, p.sent, err)
	}
	if used := most - before; used > 20<<20 {
		t.Errorf("%d events of %d bytes took %d bytes", p.n, len(text), used)
	}
	for i := range events {
		kept, err := json.Marshal(events[i])
		if err != nil || len(kept) > 2<<10 || !utf8.ValidString(events[i].Message) || !strings.HasSuffix(events[i].Message, "é...") {
			t.Fatalf("%d bytes are kept of an event, error %v: %s", len(kept), err, kept)
		}
	}
}

// Of however many events a bounded number is kept, and each page is asked for once, with what
// selects them.
func TestHostileEventsAreManyPages(t *testing.T) {
	p := &pages{n: 100_000, event: func(i int) *corev1.Event { return about("team-a", fmt.Sprint("p", i)) }}
	events, more, err := Read(t.Context(), p.api(), "team-a", allocators, now)
	if err != nil || !more || len(events) != MaxEvents || len(p.asked) != MaxEvents/pageSize+1 {
		t.Errorf("%d events of %d pages, more: %v, error %v", len(events), len(p.asked), more, err)
	}
	for _, part := range []string{"/api/v1/namespaces/team-a/events?", "involvedObject.kind%3DPod", "source%3Dvernier-allocator", "&limit=500 application/json"} {
		if !strings.Contains(p.asked[0], part) || !strings.Contains(p.asked[1], "continue=500&") {
			t.Errorf("asked for %q, want %s", p.asked[:2], part)
		}
	}
	p = &pages{n: 1200, event: p.event}
	if events, more, err = Read(t.Context(), p.api(), "", allocators, now); err != nil || more || len(events) != 1200 || len(p.asked) != 3 {
		t.Errorf("%d events of %d pages, more: %v, error %v", len(events), len(p.asked), more, err)
	}
	for i := range events {
		if want := fmt.Sprint("p", i); events[i].InvolvedObject.Name != want || events[i].Message != "needs 90 % compute" {
			t.Fatalf("event %d is of %s: %s", i, events[i].InvolvedObject.Name, events[i].Message)
		}
	}
}

// What the author of an event wrote of other namespaces, and of times to come, does not count.
func TestHostileEventsOfOthersAndTimesToCome(t *testing.T) {
	past, future := metav1.NewTime(now.Add(-time.Second)), metav1.NewTime(now.AddDate(10, 0, 0))
	for name, tt := range map[string]struct {
		edit func(*corev1.Event)
		want time.Time // zero where the event is left out
	}{
		"as it was":            {func(*corev1.Event) {}, now.Add(-time.Minute)},
		"another namespace":    {func(e *corev1.Event) { e.InvolvedObject.Namespace = "team-b" }, time.Time{}},
		"no namespace":         {func(e *corev1.Event) { e.InvolvedObject.Namespace = "" }, time.Time{}},
		"last time in future":  {func(e *corev1.Event) { e.LastTimestamp = future }, now.Add(-time.Hour)},
		"event time in future": {func(e *corev1.Event) { e.EventTime = metav1.NewMicroTime(future.Time) }, now.Add(-time.Hour)},
		"series in future": {func(e *corev1.Event) {
			e.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(future.Time)}
		}, now.Add(-time.Hour)},
		"latest is its series": {func(e *corev1.Event) {
			e.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(past.Time)}
		}, past.Time},
		"latest is its own time": {func(e *corev1.Event) { e.EventTime = metav1.NewMicroTime(past.Time) }, past.Time},
	} {
		e := about("team-a", "p")
		tt.edit(e)
		p := &pages{n: 1, event: func(int) *corev1.Event { return e }}
		events, _, err := Read(t.Context(), p.api(), "", allocators, now)
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.want.IsZero() != (len(events) == 0):
			t.Errorf("%s: %d events", name, len(events))
		case len(events) == 1 && !events[0].LastTimestamp.Time.Equal(tt.want):
			t.Errorf("%s: of %v, want %v", name, events[0].LastTimestamp, tt.want)
		}
	}
}

func TestRead_WhenAnswerIsNoList_SaysSo(t *testing.T) {
	for _, body := range []string{"", "[]", `{"items":7}`, `{"items":[{"reason":7}]}`, `{"items":[{}`, `{"metadata":{}`} {
		api := objects.API(func(*http.Request) (*http.Response, error) {
			return objects.Answer(http.StatusOK, bytes.NewReader([]byte(body))), nil
		})
		if events, _, err := Read(t.Context(), api, "", allocators, now); err == nil || len(events) > 0 {
			t.Errorf("%q: %d events, no error", body, len(events))
		}
	}
}

// A text that is longer than it may be is cut between two characters.
func TestCut(t *testing.T) {
	for n := range 8 {
		whole := strings.Repeat("x", n) + strings.Repeat("è", 510)
		got := Cut(whole, MaxNote)
		if len(got) > 1024 || !utf8.ValidString(got) || (got == whole) != (len(whole) <= 1024) {
			t.Errorf("%d bytes become %d, valid: %v", len(whole), len(got), utf8.ValidString(got))
		}
		if cut, short := strings.CutSuffix(got, "..."); short && (!strings.HasPrefix(whole, cut) || len(cut) < 1019) {
			t.Errorf("of %d bytes %d are left: %q", len(whole), len(cut), got)
		}
	}
}

// Of the annotations a cause of ours is kept, and nothing that others have written.
func TestRead_KeepsTheCause(t *testing.T) {
	words := []string{string(cause.NoGPU), strings.Repeat("x", 100<<10)}
	p := &pages{n: len(words), event: func(i int) *corev1.Event {
		e := about("team-a", "p")
		e.Annotations = map[string]string{cause.Annotation: words[i], "a": "b"}
		return e
	}}
	events, _, err := Read(t.Context(), p.api(), "team-a", allocators, now)
	if err != nil || len(events) != 2 || len(events[0].Annotations) != 1 || events[0].Annotations[cause.Annotation] != words[0] || len(events[1].Annotations) != 0 {
		t.Errorf("%d events, error %v", len(events), err)
	}
}
