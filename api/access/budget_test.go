// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/test/must"
)

// flood sends as many unknown tokens as nobody's budget has room for, from one address or
// from many.
func flood(t *testing.T, r *Review, addresses int) error {
	t.Helper()
	var last error
	for i := range max(1000, addresses) {
		n := i % addresses
		last = r.Check(t.Context(), fmt.Sprintf("10.%d.%d.%d:4000", n>>16&255, n>>8&255, n&255), fmt.Sprint("guess", i))
	}
	if !errors.Is(last, ErrAway) {
		t.Fatalf("the flood ends with %v: it uses up nothing", last)
	}
	return last
}

// For ten minutes every second begins with a flood from as many addresses as there are entries,
// and more: a known reader reads all the same, also after its token was replaced.
func TestHostileTokens_WhenAddressesFlood_KnownReaderReads(t *testing.T) {
	s, now := &kube{}, clocktesting.NewFakePassiveClock(time.Now())
	r := metricsReview(tokens{s}, rights{s}, now)
	must.Do(t, r.Check(t.Context(), peer, "ann"))
	for second := range 600 {
		flood(t, r, 2*maxSources)
		from := peer
		if second/100%2 == 1 {
			from = "198.51.100.7:80" // its pod was replaced
		}
		if err := r.Check(t.Context(), from, "ann"); err != nil {
			t.Fatalf("after %d s: %v", second, err)
		}
		if from == peer && second%50 == 25 {
			// The kubelet has replaced the pod's token.
			r.budget.refuse(sha256.Sum256([]byte("ann")))
		}
		now.SetTime(now.Now().Add(time.Second))
	}
	// Those about the known token, its replacements and what others has room for.
	const known = 600/60 + 600/50
	if most := 600*unknownPerSecond + unknownAtOnce + known; s.asked > most {
		t.Errorf("%d questions in 600 s, want no more than %d", s.asked, most)
	}
	if n := len(r.budget.sources); n > maxSources {
		t.Errorf("%d addresses are remembered, want no more than %d", n, maxSources)
	}
}

// One address that floods uses up its own budget: a reader that is new gets in.
func TestHostileTokens_WhenOneAddressFloods_NewReaderReads(t *testing.T) {
	s, now := &kube{}, clocktesting.NewFakePassiveClock(time.Now())
	r := metricsReview(tokens{s}, rights{s}, now)
	if err := flood(t, r, 1); !strings.Contains(err.Error(), "came from 10.0.0.0") {
		t.Errorf("refused with %v, want the address", err)
	}
	if s.asked != addressAtOnce {
		t.Errorf("%d questions for one address, want %d", s.asked, addressAtOnce)
	}
	if err := r.Check(t.Context(), peer, "ann"); err != nil {
		t.Errorf("a new reader: %v", err)
	}
	now.SetTime(now.Now().Add(time.Second))
	if err := r.Check(t.Context(), "10.0.0.0:1", "guess"); errors.Is(err, ErrAway) {
		t.Errorf("a second later: %v", err)
	}
}

// What is refused without a question leaves nothing in the log.
func TestHostileTokens_WhenAddressFloods_LogStaysEmpty(t *testing.T) {
	s, lines := &kube{}, 0
	r := metricsReview(tokens{s}, rights{s}, clocktesting.NewFakePassiveClock(time.Now()))
	h := must.Get(r.filter(funcr.New(func(string, string) { lines++ }, funcr.Options{}), http.NotFoundHandler()))(t)
	for i := range 100 {
		want := http.StatusUnauthorized
		if i >= addressAtOnce {
			want = http.StatusTooManyRequests
		}
		if status, text := get(t, h, fmt.Sprint("Bearer guess", i)); status != want {
			t.Fatalf("token %d: %d: %s, want %d", i, status, text, want)
		}
	}
	if lines > 0 {
		t.Errorf("%d lines are logged", lines)
	}
}

// A known token that is sent in a flood itself costs the API server little.
func TestHostileTokens_WhenKnownTokenFloods_QuestionsAreBounded(t *testing.T) {
	s, now := &kube{}, clocktesting.NewFakePassiveClock(time.Now())
	r := metricsReview(tokens{s}, rights{s}, now)
	must.Do(t, r.Check(t.Context(), peer, "ann"))
	now.SetTime(now.Now().Add(goodFor))
	s.away = errors.New("away")
	before := s.asked
	for range 1000 {
		if err := r.Check(t.Context(), peer, "ann"); !errors.Is(err, ErrAway) {
			t.Fatal(err)
		}
	}
	if n := s.asked - before; n != acceptedAtOnce {
		t.Errorf("%d questions about one known token, want %d", n, acceptedAtOnce)
	}
}

// The tables are bounded, and a table of tokens that is full loses the oldest.
func TestBudget_WhenTokensAreMany_OldestIsDropped(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Now())
	b := newBudget(now)
	key := func(i int) digest { return sha256.Sum256([]byte(fmt.Sprint(i))) }
	from := netip.MustParseAddr("192.0.2.1")
	for i := range maxAccepted + 1 {
		b.accept(key(i), from)
		now.SetTime(now.Now().Add(time.Millisecond))
	}
	if n := b.accepted.Len(); n != maxAccepted || b.token(key(0)) != nil || b.token(key(1)) == nil {
		t.Errorf("%d tokens, the first still there: %v", n, b.token(key(0)) != nil)
	}
}

func TestAddress(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80":           "192.0.2.1",
		"[::ffff:192.0.2.1]:80":  "192.0.2.1",
		"[2001:db8::1:2:3:4]:80": "2001:db8::",
		"[fe80::1%eth0]:80":      "fe80::",
		"nonsense":               "invalid IP",
	} {
		if got := address(remote).String(); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
}

// client-go's own limit would let the questions about known tokens queue behind the others.
func TestFilter_WhenClientIsThrottled_DoesNotQueue(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":false}}`)
	}))
	defer server.Close()
	f := must.Get(filter(&rest.Config{Host: server.URL, QPS: 1e-6, Burst: 1}, server.Client()))(t)
	h := must.Get(f(logr.Discard(), http.NotFoundHandler()))(t)
	for range addressAtOnce {
		if status, text := get(t, h, "Bearer guess"); status != http.StatusUnauthorized {
			t.Errorf("%d: %s", status, text)
		}
	}
	if asked != addressAtOnce {
		t.Errorf("%d questions, want %d", asked, addressAtOnce)
	}
}
