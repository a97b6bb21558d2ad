// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// What idle slices can expect on a device, and what they get. Of a slice whose container has not been
// observed for observedEnough all that its container asks for counts.

const (
	// starvedBelow is the part of the device that is next to nothing.
	starvedBelow = 0.01
	// waitsFrom is the part of the time in which launches wait, from which an idle slice wants more.
	waitsFrom = 0.5
	// observedEnough is how long a container is observed before its use says what it will use.
	observedEnough = 10 * time.Minute
	// expectedStep is how coarse the published figure is, in percent: each change is a write.
	expectedStep = 5
)

// starving is an idle slice at the last look.
type starving struct {
	at, since       time.Time // since is zero while it has enough, or wants nothing
	busy, throttled time.Duration
}

// starve notes what idle slices of a container got, and reports whether others starve than before.
func (a *Account) starve(all []sample, now time.Time) (changed bool) {
	now = now.Truncate(time.Second)
	for _, s := range all {
		if s.grant.Idle == 0 {
			continue
		}
		key := sliceKey{s.container, s.uuid}
		was, seen := a.starving[key]
		is := starving{at: now, busy: s.busy, throttled: s.now.Throttled}
		if elapsed := now.Sub(was.at).Seconds(); seen && elapsed > 0 &&
			(s.now.Throttled-was.throttled).Seconds() >= waitsFrom*elapsed && (s.busy-was.busy).Seconds() < starvedBelow*elapsed {
			is.since = was.since
			if is.since.IsZero() {
				is.since = was.at
			}
		}
		changed = changed || is.since != was.since
		if a.starving == nil {
			a.starving = map[sliceKey]starving{}
		}
		a.starving[key] = is
	}
	return changed
}

// StarvedSince is since when a container's idle slice has waited and got next to nothing, nil where it
// has not.
func (a *Account) StarvedSince(container, uuid string) *metav1.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since := a.starving[sliceKey{container, uuid}].since; !since.IsZero() {
		return &metav1.Time{Time: since}
	}
	return nil
}

// ExpectedBusy is the percent of a device's compute that its slices with a quota are expected to use
// at most. It is the sum of what each used at its 95th percentile, but no less than five standard
// deviations above the mean of all.
func (a *Account) ExpectedBusy(uuid string) v1alpha1.Percent {
	_, granted, known := a.from.State()
	if !known {
		return v1alpha1.WholeGPU
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var high, mean, variance float64
	granted.Each(func(key ledger.Key, grants []ledger.Grant) {
		at := slices.IndexFunc(grants, func(g ledger.Grant) bool { return g.UUID == uuid })
		if at < 0 || grants[at].Core == 0 {
			return
		}
		quota := float64(grants[at].Asked.Core) // it may use as much, if it is over-committed
		u := a.used(key)
		if u == nil || grants[at].Mode != v1alpha1.ModeLimiter || u.Of.Last.Sub(u.Of.Since) < observedEnough {
			high, mean = high+quota, mean+quota
			return
		}
		m, v := u.Of.Core.Moments()
		high, mean, variance = high+min(quota, float64(u.Of.Core.Quantile(0.95))), mean+min(quota, m), variance+v
	})
	busy := math.Ceil(max(high, mean+5*math.Sqrt(variance))/expectedStep) * expectedStep
	return v1alpha1.Percent(min(busy, float64(v1alpha1.WholeGPU)))
}

// ExpectedPeak is the most memory of a device that the workload of a container was seen to use, or want,
// in the last days. False while it has not been observed for observedEnough.
func (a *Account) ExpectedPeak(key ledger.Key) (v1alpha1.MiB, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.used(key)
	if u == nil || u.Of.Last.Sub(u.Of.Since) < observedEnough {
		return 0, false
	}
	total := u.Of.Total()
	return max(total.Peak, total.Need), true
}

// used is the entry of a container that is observed, nil where none is.
func (a *Account) used(key ledger.Key) *containerUse {
	at := slices.IndexFunc(a.kept.Watched, func(w watched) bool { return w.Pod == key.Pod && w.Key.Container == key.Container })
	if at < 0 {
		return nil
	}
	of := slices.IndexFunc(a.kept.Containers, func(u *containerUse) bool { return u.Ended == nil && u.key() == a.kept.Watched[at].Key })
	if of < 0 {
		return nil
	}
	return a.kept.Containers[of]
}
