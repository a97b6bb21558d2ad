// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/page"
	"vernier.dev/vernier/allocator/page/usage"
	"vernier.dev/vernier/api/v1alpha1"
)

// gpusPerNode and slicesPerGPU make a busy fleet; every tenth GPU is empty.
const (
	gpusPerNode  = 8
	slicesPerGPU = 5
)

// fleet is nodes with GPUs. Its ledgers may be exchanged while the page is served.
type fleet struct {
	ledgers atomic.Pointer[[]*v1alpha1.SliceLedger]
}

func (f *fleet) grow(gpus int) {
	var all []*v1alpha1.SliceLedger
	for n := range gpus / gpusPerNode {
		l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("gpu-%03d", n)}}
		l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
		for g := range gpusPerNode {
			uuid := fmt.Sprintf("GPU-%03d-%d", n, g)
			l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(g), Model: "NVIDIA A100-SXM4-80GB", Mem: 81313, Healthy: true})
			d := v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 81313}
			for s := range slicesPerGPU {
				if (n*gpusPerNode+g)%10 == 0 {
					break
				}
				owner := fmt.Sprintf("team-%d/pod-%d-%d-%d", s, n, g, s)
				d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID(owner), Owner: owner, Ctr: "main", Core: 18, Mem: 15000})
			}
			l.Spec.Devices = append(l.Spec.Devices, d)
		}
		all = append(all, l)
	}
	f.ledgers.Store(&all)
}

// Check lets one token in.
func (f *fleet) Check(_ context.Context, _, token string) error {
	if token != "good" {
		return errors.New("unknown token")
	}
	return nil
}

// serve is the page over a fleet, and its address.
func serve(t testing.TB, gpus int) (f *fleet, url string) {
	t.Helper()
	f = &fleet{}
	f.grow(gpus)
	p := page.New(page.Sources{
		Ledgers: func(context.Context) ([]*v1alpha1.SliceLedger, error) {
			return append([]*v1alpha1.SliceLedger{}, *f.ledgers.Load()...), nil
		},
		Gated:   func() ([]*corev1.Pod, error) { return nil, nil },
		Classes: func(context.Context) ([]v1alpha1.GPUClass, error) { return nil, nil },
		Pod:     func(_, name string) (*corev1.Pod, error) { return nil, errors.New("no " + name) },
		Events:  func(context.Context) ([]corev1.Event, error) { return nil, nil },
		Advice:  func(context.Context) ([]v1alpha1.SliceAdvice, error) { return nil, nil },
		Uses:    func(context.Context, []string) map[string]usage.Reading { return nil },
	}, page.Accesses{Ledgers: f, Use: f}, logr.Discard())
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return f, s.URL
}

const (
	squares  = "document.querySelectorAll('.map i').length"
	nodes    = "document.querySelectorAll('article').length"
	focusID  = "document.activeElement.id"
	inFocus  = "document.activeElement.textContent.trim()"
	selected = "new URLSearchParams(location.search).get('only')"
)

// signIn takes the page's own form.
func signIn(b *tab, url string) {
	b.t.Helper()
	b.visit(url)
	b.await(focusID, "token")
	b.write("good")
	b.press("Enter")
	b.await("!!document.getElementById('main')", true)
}

// With 5,000 GPUs a person who has only a keyboard signs in, reaches the nodes without
// going over every square, opens a GPU, searches, filters and turns pages.
func TestLargeFleetByKeyboard(t *testing.T) {
	t.Parallel()
	_, url := serve(t, 5000)
	b := open(t)
	signIn(b, url)
	b.await(squares, 5000)
	b.await(nodes, 20)

	b.press("Tab")
	b.await(inFocus, "Skip to the nodes")
	b.press("Enter", "Tab")
	b.await("document.activeElement.tagName", "SUMMARY")
	b.press("Enter")
	b.await("document.activeElement.parentElement.open", true)

	b.focus("#next")
	b.press("Enter")
	b.await("document.getElementById('nodes').textContent", "Nodes (page 2 of 32)")
	b.focus("#prev")
	b.press("Enter")
	b.await("document.getElementById('nodes').textContent", "Nodes (page 1 of 32)")

	b.focus("#q")
	b.write("gpu-123")
	b.press("Enter")
	b.await(nodes, 1)
	b.await("document.querySelector('article h3').textContent", "gpu-123")

	b.eval("document.getElementById('q').value = ''")
	b.focus("#only")
	b.press("ArrowDown", "ArrowDown", "Tab", "Tab", "Enter")
	b.await(selected, "empty")
	b.await(squares, 500)
}

// The bars of all GPUs are of one width, end in sight, and hold all their parts, on a
// desk as on a telephone: else a full GPU looks like one with room.
func TestBarsLineUp(t *testing.T) {
	t.Parallel()
	f, url := serve(t, 16)
	crowd := (*f.ledgers.Load())[0]
	crowd.Spec.Devices[1].Slices = nil
	for i := range 100 {
		crowd.Spec.Devices[1].Slices = append(crowd.Spec.Devices[1].Slices, v1alpha1.Slice{Owner: fmt.Sprintf("a/%d", i), Ctr: "main", Core: 1, Mem: 813})
	}
	b := open(t)
	signIn(b, url)
	for _, width := range []int{1280, 700, 390} {
		b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
		b.await("innerWidth", width)
		b.await("document.querySelectorAll('.bar').length", 32)
		for what, expression := range map[string]string{
			"widths":                      "new Set([...document.querySelectorAll('.bar')].map(b => Math.round(b.getBoundingClientRect().width))).size",
			"bars that hide some":         "1 + [...document.querySelectorAll('.bar')].filter(b => b.scrollWidth > b.clientWidth).length",
			"pages wider than the screen": "1 + (document.documentElement.scrollWidth > innerWidth)",
			"bars out of sight":           "1 + [...document.querySelectorAll('.bar')].filter(b => b.getBoundingClientRect().right > innerWidth).length",
		} {
			if n := b.eval(expression); n != 1.0 {
				t.Errorf("%d pixels wide: %s: %v, want 1", width, what, n)
			}
		}
	}
}

// Each owner's colour shows on the bar, in light and in dark, under its name and beside the line
// that divides it from the next, and no two of them look alike.
func TestOwnersColoursShow(t *testing.T) {
	t.Parallel()
	f, url := serve(t, 8)
	crowd := (*f.ledgers.Load())[0]
	for i := range 64 {
		crowd.Spec.Devices[1].Slices = append(crowd.Spec.Devices[1].Slices, v1alpha1.Slice{Owner: fmt.Sprintf("owner-%d/pod", i), Ctr: "main", Core: 1, Mem: 813})
	}
	b := open(t)
	signIn(b, url)
	for _, scheme := range []string{"light", "dark"} {
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		b.await("matchMedia('(prefers-color-scheme: dark)').matches", scheme == "dark")
		bar := colour(t, b.eval("getComputedStyle(document.querySelector('.bar')).backgroundColor"))
		owners := map[string][]float64{}
		for i := range 8 {
			part := fmt.Sprintf("getComputedStyle(document.querySelector('.bar .h%d'))", i)
			owner, text, line := colour(t, b.eval(part+".backgroundColor")), colour(t, b.eval(part+".color")), colour(t, b.eval(part+".borderRightColor"))
			for _, c := range []struct {
				what    string
				against []float64
				least   float64
			}{{"the bar", bar, 3}, {"the line beside it", line, 3}, {"the name on it", text, 4.5}} {
				if got := contrast(owner, c.against); got < c.least {
					t.Errorf("%s: owner %d and %s: contrast %.2f, want %v", scheme, i, c.what, got, c.least)
				}
			}
			for other, of := range owners {
				if d := distance(owner, of); d < 30 {
					t.Errorf("%s: owner %d and %s: %.0f apart, want 30", scheme, i, other, d)
				}
			}
			owners[fmt.Sprint("owner ", i)] = owner
		}
	}
}

// On a telephone the page's content begins near its top.
func TestContentBeginsNearTheTop(t *testing.T) {
	t.Parallel()
	_, url := serve(t, 8)
	b := open(t)
	signIn(b, url)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.await("innerWidth", 390)
	b.await("document.getElementById('state').textContent", "live")
	if top := b.eval("document.getElementById('main').firstElementChild.getBoundingClientRect().top"); top.(float64) > 120 {
		t.Errorf("the content begins %v pixels below the top, want 120 at most", top)
	}
}

// What is new comes in by itself, and leaves the focus and what was opened where they
// were.
func TestLiveUpdateKeepsTheReadersPlace(t *testing.T) {
	t.Parallel()
	f, url := serve(t, 16)
	b := open(t)
	signIn(b, url)
	b.focus("#g-GPU-000-3 summary")
	b.press("Enter")
	b.await("document.activeElement.parentElement.id", "g-GPU-000-3")
	f.grow(24)
	b.await(squares, 24)
	b.await("document.activeElement.parentElement.id", "g-GPU-000-3")
	b.await("document.activeElement.parentElement.open", true)
}

// BenchmarkPage is a reader's wait for the page, from the click until it is drawn and
// answers: for a small fleet and for a large one.
func BenchmarkPage(b *testing.B) {
	for _, gpus := range []int{8, 5000} {
		b.Run(fmt.Sprintf("gpus=%d", gpus), func(b *testing.B) {
			_, url := serve(b, gpus)
			browser := open(b)
			signIn(browser, url)
			usable, bytes := 0.0, 0.0
			for i := 0; b.Loop(); i++ {
				mark := fmt.Sprintf("?i=%d", i)
				browser.visit(url + "/" + mark)
				browser.await("location.search + document.readyState", mark+"complete")
				// The second frame begins when the first one is drawn.
				usable += browser.eval("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(performance.now()))))").(float64)
				bytes += browser.eval("performance.getEntriesByType('navigation')[0].transferSize").(float64)
			}
			b.ReportMetric(usable/float64(b.N), "ms/usable")
			b.ReportMetric(bytes/float64(b.N), "B/page")
			b.ReportMetric(0, "ns/op")
		})
	}
}
