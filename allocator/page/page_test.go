// SPDX-License-Identifier: Apache-2.0

package page

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/page/usage"
	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/access"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
)

// keys is an Access that knows one token.
type keys struct{ err error }

func (k keys) Check(_ context.Context, _, token string) error {
	if k.err != nil {
		return k.err
	}
	if token != "good" {
		return errors.New("unknown token <script>")
	}
	return nil
}

// ledgerOf has a ready node with healthy GPUs of 1000 MiB.
func ledgerOf(name string, gpus int) *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	for i := range gpus {
		uuid := fmt.Sprintf("GPU-%s-%d", name, i)
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(i), Model: "NVIDIA A100", Mem: 1000, Healthy: true})
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 1000})
	}
	return l
}

func grant(l *v1alpha1.SliceLedger, gpu int, owner string, core v1alpha1.Percent, mem v1alpha1.MiB) {
	d := &l.Spec.Devices[gpu]
	d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID(owner), Owner: owner, Ctr: "main", Core: core, Mem: mem})
}

func gated(name string, since time.Time, others ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(since)}}
	p.Annotations = map[string]string{v1alpha1.AnnotationShares: `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memPercent":30}}}`}
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	for _, g := range append(others, v1alpha1.Gate) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	return p
}

func event(pod, message string, at time.Time) corev1.Event {
	return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Annotations: map[string]string{cause.Annotation: string(cause.WaitsForPod)}}, InvolvedObject: corev1.ObjectReference{Name: pod, UID: types.UID(pod)}, Message: message, LastTimestamp: metav1.NewTime(at)}
}

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func sources(ledgers ...*v1alpha1.SliceLedger) Sources {
	return Sources{
		Ledgers: func(context.Context) ([]*v1alpha1.SliceLedger, error) { return ledgers, nil },
		Gated: func() ([]*corev1.Pod, error) {
			return []*corev1.Pod{gated("late", noon.Add(time.Hour)), gated("early", noon), gated("queued", noon, "queue.example/hold"), {}}, nil
		},
		Classes: func(context.Context) ([]v1alpha1.GPUClass, error) { return nil, nil },
		Pod:     func(_, name string) (*corev1.Pod, error) { return nil, errors.New("no " + name) },
		Node:    func(string) *corev1.Node { return nil },
		Uses:    func(context.Context, []string) map[string]usage.Reading { return nil },
		Advice:  func(context.Context) ([]v1alpha1.SliceAdvice, error) { return nil, nil },
		Events: func(context.Context) ([]corev1.Event, error) {
			return []corev1.Event{event("early", "needs <b>30</b> core", noon.Add(2*time.Minute)), event("early", "old words", noon.Add(time.Minute))}, nil
		},
	}
}

func newPage(s Sources, access Access) *Page {
	return New(s, Accesses{Ledgers: access, Use: access}, logr.Discard())
}

func ask(p *Page, method, path, token string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		r.AddCookie(&http.Cookie{Name: cookie, Value: token})
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// Nobody sees anything without a token that the API server lets list ledgers.
func TestAccess(t *testing.T) {
	p := newPage(sources(ledgerOf("secret-node", 1)), keys{})
	for name, w := range map[string]*httptest.ResponseRecorder{
		"none":      ask(p, http.MethodGet, "/", "", nil),
		"unknown":   ask(p, http.MethodGet, "/", "bad", nil),
		"bad login": ask(p, http.MethodPost, "/login", "", url.Values{"token": {"bad"}}),
	} {
		if w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "secret-node") || strings.Contains(w.Body.String(), "<script>") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if len(w.Result().Cookies()) != 0 {
			t.Errorf("%s: a cookie", name)
		}
	}
	in := ask(p, http.MethodPost, "/login", "", url.Values{"token": {" good\n"}})
	cookies := in.Result().Cookies()
	if in.Code != http.StatusSeeOther || len(cookies) != 1 {
		t.Fatalf("%d, %v", in.Code, cookies)
	}
	if c := cookies[0]; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Value != "good" || c.MaxAge != 0 {
		t.Errorf("a cookie that others can read, or that stays: %+v", c)
	}
	if w := ask(p, http.MethodGet, "/", "good", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "secret-node") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer good")
	w := httptest.NewRecorder()
	if p.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("a program's token: %d", w.Code)
	}
	out := ask(p, http.MethodPost, "/logout", "good", nil).Result().Cookies()
	if len(out) != 1 || out[0].MaxAge >= 0 {
		t.Errorf("forgotten: %v", out)
	}
	if w := ask(newPage(sources(), keys{fmt.Errorf("%w: refused", access.ErrAway)}), http.MethodGet, "/", "good", nil); w.Code != http.StatusServiceUnavailable {
		t.Errorf("nobody can tell: %d", w.Code)
	}
	for _, path := range []string{"/login", "/../etc/passwd", "/metrics"} {
		if w := ask(p, http.MethodGet, path, "good", nil); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// Nobody has the page read more of a form than a token is long.
func TestFormIsBounded(t *testing.T) {
	p := newPage(sources(), keys{})
	for _, tt := range []struct {
		spaces, status int
	}{{8 << 10, http.StatusSeeOther}, {1 << 20, http.StatusUnauthorized}} {
		body := strings.NewReader("token=" + strings.Repeat("+", tt.spaces) + "good")
		all := body.Len()
		r := httptest.NewRequest(http.MethodPost, "/login", body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		if read := all - body.Len(); w.Code != tt.status || read > 64<<10 {
			t.Errorf("a form of %d bytes: %d after %d bytes, want %d", all, w.Code, read, tt.status)
		}
	}
}

// The page says who has what, what is free, what is broken and who waits, escapes
// what others wrote, and takes nothing from outside.
func TestPage(t *testing.T) {
	one, two := ledgerOf("gpu-1", 3), ledgerOf("gpu-2", 1)
	grant(one, 0, "team/train", 30, 250)
	grant(one, 0, "other/infer", 0, 500)
	one.Status.Devices[1].Healthy, one.Status.Devices[1].Reason = false, "Xid 79"
	one.Spec.Cordons = []v1alpha1.Cordon{{UUID: one.Status.Devices[2].UUID, Reason: "fans to be replaced"}}
	two.Status.Conditions[0] = metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "NVMLFailed", Message: "no driver"}
	grant(two, 0, "team/gone", 10, 10)
	two.Status.Devices = nil
	w := ask(newPage(sources(two, one), keys{}), http.MethodGet, "/", "good", nil)
	text := w.Body.String()
	for _, want := range []string{
		"team/train", "other/infer", "<b>30</b> of 100 %", "<b>750</b> of 1000 MiB", "Free: 70 % and 250 MiB", "Xid 79", "cordoned: fans to be replaced",
		"Nothing is granted here: no driver", "missing GPU", "needs &lt;b&gt;30&lt;/b&gt; core <small>(event of <time datetime=\"2026-05-04T12:02:00Z\">May 4 12:02:00</time>)</small>", "it waits for other gates first: queue.example/hold",
		"container main needs 30 % compute and 300 MiB on one GPU; nearest: gpu-1 GPU 0 has 70 % and 250 MiB free; 1 node(s) grant nothing now, such as gpu-2: no driver", "width:25.00%", "<dt>GPUs</dt><dd>4</dd>", "<dt>out of service</dt><dd>3</dd>", "<dt>waiting pods</dt><dd>3</dd>", "Waiting pods</h2>", "<button>Sign out</button>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "old words") || strings.Contains(text, "ZgotmplZ") {
		t.Error("what was said before, or what the template refused")
	}
	if strings.Index(text, "team pod/early") > strings.Index(text, "team pod/late") || strings.Index(text, "n-gpu-1") > strings.Index(text, "n-gpu-2") {
		t.Error("not in order")
	}
	if policy := w.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "script-src 'unsafe-inline'") {
		t.Errorf("policy %q", policy)
	}
	for _, outside := range []string{"http://", "https://", "src="} {
		if strings.Contains(text, outside) {
			t.Errorf("something from outside: %q", outside)
		}
	}
	again := ask(newPage(sources(two, one), keys{}), http.MethodGet, "/", "good", nil)
	tag := w.Header().Get("ETag")
	if tag == "" || again.Header().Get("ETag") != tag {
		t.Error("the same content has another tag")
	}
	for have, status := range map[string]int{tag: http.StatusNotModified, `"another"`: http.StatusOK} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer good")
		r.Header.Set("If-None-Match", have)
		w := httptest.NewRecorder()
		newPage(sources(two, one), keys{}).ServeHTTP(w, r)
		if w.Code != status || (status == http.StatusNotModified) != (w.Body.Len() == 0) {
			t.Errorf("a reader who has %s: %d with %d bytes", have, w.Code, w.Body.Len())
		}
	}
}

// A class that no GPU serves is named where the waiting pods stand, with why, whether pods wait or not.
func TestUnavailableClasses(t *testing.T) {
	class := func(name string, status metav1.ConditionStatus, message string) v1alpha1.GPUClass {
		return v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.GPUClassStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAvailable, Status: status, Message: message}}}}
	}
	s := sources(ledgerOf("gpu-1", 1))
	s.Gated = func() ([]*corev1.Pod, error) { return nil, nil }
	s.Classes = func(context.Context) ([]v1alpha1.GPUClass, error) {
		return []v1alpha1.GPUClass{class("small", metav1.ConditionFalse, "no GPU of the cluster is of its models (<H100>)"), class("large", metav1.ConditionTrue, "served"), {}}, nil
	}
	text := ask(newPage(s, keys{}), http.MethodGet, "/", "good", nil).Body.String()
	if strings.Count(text, "Class ") != 1 || !strings.Contains(text, "Class small: no GPU of the cluster is of its models (&lt;H100&gt;)") {
		t.Errorf("want class small alone: %s", text)
	}
}

// Room that is kept is on the row of the pod that waits and on the GPU, as its last event says,
// whatever was said after; nothing is kept on a GPU that is out of service, and nothing of what
// pods were told that wait no more.
func TestReservedRoom(t *testing.T) {
	s := sources(ledgerOf("gpu-1", 3))
	ledgers, _ := s.Ledgers(t.Context())
	ledgers[0].Status.Devices[1].Healthy = false
	web := []*corev1.Pod{owned(gated("web-0", noon), "web"), owned(gated("web-1", noon), "web")}
	s.Gated = func() ([]*corev1.Pod, error) {
		return append(web, gated("alone", noon), gated("held", noon, "queue.example/hold")), nil
	}
	sent := func(pod, reason, message string, after time.Duration) corev1.Event {
		e := event(pod, message, noon.Add(after))
		e.Reason = reason
		return e
	}
	const room = "reserved on node gpu-1 GPU 0, GPU 1, waits for pods a, b to end"
	s.Events = func(context.Context) ([]corev1.Event, error) {
		return []corev1.Event{
			sent("web-0", view.ReasonPreempting, room+", about 40s", 0), sent("web-1", view.ReasonPreempting, room+", about 40s", 0),
			sent("web-0", "VernierWaiting", "needs <100> %", time.Minute), sent("web-1", "VernierWaiting", "needs <100> %", time.Minute),
			sent("alone", view.ReasonReserved, "reserved on node gpu-1 GPU 2, which is being freed", 0),
			sent("held", view.ReasonReserved, room, 0), sent("gone", view.ReasonReserved, room, 0),
		}, nil
	}
	text := ask(newPage(s, keys{}), http.MethodGet, "/", "good", nil).Body.String()
	const until = `, until about <time datetime="2026-05-04T12:00:40Z">May 4 12:00:40</time> UTC</strong>`
	for want, times := range map[string]int{
		"<td><strong>" + room + until + " needs &lt;100&gt; % <small>(event of <time datetime=\"2026-05-04T12:01:00Z\">May 4 12:01:00</time>)</small></td>":                                         1,
		"<td><strong>reserved on node gpu-1 GPU 2, which is being freed</strong> there is room by the ledgers, and the allocator&#39;s event has expired: its log says what else it waits for</td>": 1,
		"GPU 0 <strong>reserved for team deployment/web" + until: 1,
		"GPU 2 <strong>reserved for team pod/alone</strong>":     1,
		"reserved for": 2,
	} {
		if got := strings.Count(text, want); got != times {
			t.Errorf("%d times %q, want %d", got, want, times)
		}
	}
}

func TestChoice(t *testing.T) {
	a, b := ledgerOf("alpha", 2), ledgerOf("beta", 1)
	grant(a, 0, "team/train", 30, 250)
	grant(b, 0, "team/whole", 100, 1000)
	b.Status.Devices[0].Model = "NVIDIA T4"
	for query, want := range map[string]string{
		"":                        "alpha/0 alpha/1 beta/0",
		"q=BETA":                  "beta/0",
		"q=t4":                    "beta/0",
		"q=train":                 "alpha/0",
		"only=fragments":          "alpha/0",
		"only=empty":              "alpha/1",
		"only=trouble":            "",
		"only=nonsense&page=-3":   "alpha/0 alpha/1 beta/0",
		"q=nobody&page=9999":      "",
		"only=empty&q=train":      "",
		"q=alpha&only=fragments":  "alpha/0",
		"q=%3Cscript%3E&only=all": "",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		f, err := sources(a, b).read(t.Context(), choiceOf(values), true)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range f.Nodes {
			for _, g := range n.GPUs {
				got = append(got, n.Name+"/"+strings.TrimPrefix(g.Name(), "GPU "))
			}
		}
		if strings.Join(got, " ") != want || f.Totals.GPUs != 3 {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

// A fleet of 5,000 GPUs: all of them on the map, a page of nodes in full.
func TestLargeFleet(t *testing.T) {
	var all []*v1alpha1.SliceLedger
	for i := range 625 {
		l := ledgerOf(fmt.Sprintf("gpu-%03d", i), 8)
		for g := range 8 {
			for s := range 5 {
				grant(l, g, fmt.Sprintf("team-%d/pod-%d", s, i), 18, 190)
			}
		}
		all = append(all, l)
	}
	text := ask(newPage(sources(all...), keys{}), http.MethodGet, "/?page=32", "good", nil).Body.String()
	if n := strings.Count(text, "<i class=\"f"); n < 5000 {
		t.Errorf("%d GPUs on the map", n)
	}
	if n := strings.Count(text, "<article"); n != 5 || !strings.Contains(text, "page 32 of 32") {
		t.Errorf("%d nodes on the last page", n)
	}
	if len(text) > 2<<20 {
		t.Errorf("%d bytes", len(text))
	}
}

// A reader who takes it compressed gets the same page in fewer bytes.
func TestCompressed(t *testing.T) {
	p := newPage(sources(ledgerOf("gpu-1", 8)), keys{})
	plain := ask(p, http.MethodGet, "/", "good", nil).Body.String()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer good")
	r.Header.Set("Accept-Encoding", "gzip, br")
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	sent := w.Body.Len()
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || string(text) != plain || sent > len(plain)/2 || w.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("%d bytes of %d: %v", sent, len(plain), err)
	}
}

// An error of the cluster is said, not shown as an empty fleet.
func TestSourcesFail(t *testing.T) {
	broken := errors.New("cache is not filled")
	s := sources()
	s.Ledgers = func(context.Context) ([]*v1alpha1.SliceLedger, error) { return nil, broken }
	w := ask(newPage(s, keys{}), http.MethodGet, "/", "good", nil)
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), broken.Error()) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
