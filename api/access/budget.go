// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Questions to the API server, in a second and at once. Anybody who reaches the port can send
// any number of tokens, and the part has other business with the API server.
const (
	// All unknown tokens from addresses that no accepted token came from.
	unknownPerSecond, unknownAtOnce = 10, 20
	// Unknown tokens from one address, so that one address does not use up the above.
	addressPerSecond, addressAtOnce = 2, 5
	// One accepted token, which is asked about again once a minute.
	acceptedPerSecond, acceptedAtOnce = 1, 5
)

const (
	// goodFor is how long an accepted token is not asked about again: lost rights are noticed
	// after as long.
	goodFor = time.Minute
	// sourceGoodFor is how long an address counts as a reader's after an accepted token. A
	// pod's token is replaced by another within the hour.
	sourceGoodFor = time.Hour
	// maxAccepted bounds the accepted tokens that are remembered, maxSources the addresses.
	maxAccepted, maxSources = 1000, 1000
)

// errBusy is of questions that a budget has no room for.
var errBusy = fmt.Errorf("%w", ErrAway)

// budget says which tokens the API server is asked about now. A token that was accepted
// before, and an address that an accepted token came from, have budgets of their own: other
// tokens, however many, take nothing from them.
type budget struct {
	clock   clock.PassiveClock
	unknown flowcontrol.PassiveRateLimiter

	mu sync.Mutex
	// accepted tokens by digest.
	accepted *lru.Cache
	sources  map[netip.Addr]*source
	// others is for addresses beyond maxSources.
	others *source
	// swept is when dropIdle last ran: a flood does not make it run each time.
	swept time.Time
}

type digest = [sha256.Size]byte

type token struct {
	goodUntil time.Time
	limit     flowcontrol.PassiveRateLimiter
}

type source struct {
	goodUntil, last time.Time
	limit           flowcontrol.PassiveRateLimiter
}

func newBudget(c clock.PassiveClock) *budget {
	b := &budget{clock: c, accepted: lru.New(maxAccepted), sources: map[netip.Addr]*source{}}
	b.unknown = b.limiter(unknownPerSecond, unknownAtOnce)
	b.others = &source{limit: b.limiter(addressPerSecond, addressAtOnce)}
	return b
}

func (b *budget) limiter(perSecond float32, atOnce int) flowcontrol.PassiveRateLimiter {
	return flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, atOnce, b.clock)
}

// take reports whether the token is good without a question. If not, the error says whether
// the API server may be asked about it.
func (b *budget) take(key digest, from netip.Addr) (good bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	if t := b.token(key); t != nil {
		if now.Before(t.goodUntil) {
			return true, nil
		}
		if !t.limit.TryAccept() {
			return false, fmt.Errorf("%w: this token was to be asked about more than %d times a second", errBusy, acceptedPerSecond)
		}
		return false, nil
	}
	s := b.source(from, now)
	if !s.limit.TryAccept() {
		return false, fmt.Errorf("%w: more than %d unknown tokens a second came from %s", errBusy, addressPerSecond, from)
	}
	if now.Before(s.goodUntil) {
		return false, nil
	}
	if !b.unknown.TryAccept() {
		return false, fmt.Errorf("%w: more than %d unknown tokens a second came from all addresses", errBusy, unknownPerSecond)
	}
	return false, nil
}

// source returns the address's entry, or others if there is no room for it.
func (b *budget) source(from netip.Addr, now time.Time) *source {
	s := b.sources[from]
	if s == nil {
		if len(b.sources) >= maxSources && now.Sub(b.swept) >= time.Second {
			b.dropIdle(now)
		}
		if len(b.sources) >= maxSources {
			return b.others
		}
		s = &source{limit: b.limiter(addressPerSecond, addressAtOnce)}
		b.sources[from] = s
	}
	s.last = now
	return s
}

// dropIdle removes the entries that are as good as new ones: their limit has recovered.
func (b *budget) dropIdle(now time.Time) {
	b.swept = now
	const recovered = addressAtOnce * time.Second / addressPerSecond
	for from, s := range b.sources {
		if now.Sub(s.last) >= recovered && !now.Before(s.goodUntil) {
			delete(b.sources, from)
		}
	}
}

// accept remembers a token that the API server has accepted.
func (b *budget) accept(key digest, from netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	t := b.token(key)
	if t == nil {
		t = &token{limit: b.limiter(acceptedPerSecond, acceptedAtOnce)}
		b.accepted.Add(key, t)
	}
	t.goodUntil = now.Add(goodFor)
	if s := b.source(from, now); s != b.others {
		s.goodUntil = now.Add(sourceGoodFor)
	}
}

// token returns what is remembered of an accepted token, or nil.
func (b *budget) token(key digest) *token {
	found, _ := b.accepted.Get(key)
	t, _ := found.(*token)
	return t
}

// refuse forgets a token that the API server has refused.
func (b *budget) refuse(key digest) { b.accepted.Remove(key) }

// address is the peer of a connection, of a host:port; of IPv6 its /64, which is one host's.
// It is invalid where it cannot be read.
func address(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}
