// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// second is what a test knows of one second of a device: who had what, whether it takes slices.
type second struct {
	model     string
	mem       v1alpha1.MiB
	available bool
	slices    []v1alpha1.Slice
}

// lives is the truth of a world, beside what the account says.
type lives struct {
	*world
	seconds map[int64]map[string]second
	want    book
	// through is up to when want has everything.
	through int64
	sums    []v1alpha1.ModelUsage
	kills   int
}

// pass lets time pass.
func (l *lives) pass(d time.Duration) {
	to := l.now.Add(d)
	of := map[string]second{}
	for _, d := range l.devices {
		cordoned := l.ledger.Spec.Cordon(d.UUID) != nil
		of[d.UUID] = second{d.Model, d.Mem, d.Healthy && !cordoned, slices.Clone(l.granted(d.UUID))}
	}
	for s := l.now.Unix(); s < to.Unix(); s++ {
		l.seconds[s] = of
	}
	l.now = to
}

func (l *lives) granted(uuid string) []v1alpha1.Slice {
	at := slices.IndexFunc(l.ledger.Spec.Devices, func(in v1alpha1.DeviceLedger) bool { return in.UUID == uuid })
	return l.ledger.Spec.Devices[at].Slices
}

// expect enters each second up to now in what is wanted, one at a time. While the agent was away it
// knows of those up to what its file says.
func (l *lives) expect(away bool, devices []keptDevice) {
	one := func(s int64, model string, mem v1alpha1.MiB, all []v1alpha1.Slice, since bool, rest func(*v1alpha1.ModelUsage) *v1alpha1.DeviceTime) {
		for _, models := range []*[]v1alpha1.ModelUsage{l.want.hour(s), &l.want.Sums} {
			m := modelIn(models, model)
			left := v1alpha1.DeviceTime{Core: 100, Mem: v1alpha1.MiBSeconds(mem)}
			m.Total.Add(left)
			for _, of := range all {
				if since && of.Since.Unix() > s {
					continue
				}
				t := v1alpha1.DeviceTime{Core: v1alpha1.PercentSeconds(of.Core - of.ReuseCore), Mem: v1alpha1.MiBSeconds(of.Mem - of.ReuseMem)}
				namespace := of.Owner[:len(of.Owner)-len("/p")]
				entryIn(*models, m, namespace, 1000).Add(t)
				left.Sub(t)
			}
			rest(m).Add(left)
		}
	}
	for ; l.through < l.now.Unix(); l.through++ {
		if !away {
			for _, of := range l.seconds[l.through] {
				rest := unavailable
				if of.available {
					rest = free
				}
				one(l.through, of.model, of.mem, of.slices, false, rest)
			}
			continue
		}
		for _, d := range devices {
			var found []v1alpha1.Slice
			if slices.ContainsFunc(l.devices, func(is v1alpha1.DeviceStatus) bool { return is.UUID == d.UUID }) {
				found = l.granted(d.UUID)
			}
			one(l.through, d.Model, d.Mem, found, true, unknown)
		}
	}
}

// restart starts an agent after one was killed. What is wanted goes back to its file.
func (l *lives) restart() {
	l.kills++
	in := l.inFile()
	l.want = book{*in.Account.DeepCopy()}
	l.through = in.Account.Through.Unix()
	if in.Account.Through.IsZero() {
		l.want, l.through = book{}, l.now.Unix()
	}
	l.expect(true, in.Devices)
	l.start()
	l.compare("after a restart")
}

// compare looks at what the account has now.
func (l *lives) compare(when string) {
	l.t.Helper()
	if l.account == nil {
		return
	}
	l.account.Changed() // counts up to now
	l.expect(false, nil)
	when = fmt.Sprintf("%s, at %s, kill %d", when, l.now.Format(time.TimeOnly), l.kills)
	has := l.account.kept.Account
	checkSums(l.t, when, &has)
	checkSums(l.t, when+", published", l.object())
	if got, want := text(has.Sums), text(l.want.Sums); got != want || has.Through.Unix() != l.now.Unix() {
		l.t.Fatalf("%s, through %v:\n%s\nwant\n%s", when, has.Through, got, want)
	}
	for i, h := range has.Hours {
		if got, want := text(h.Models), text(l.want.Hours[i].Models); got != want {
			l.t.Fatalf("%s, hour %v:\n%s\nwant\n%s", when, h.Start, got, want)
		}
	}
	// What Prometheus reads never goes back.
	now := l.account.Sums()
	for _, before := range l.sums {
		i := slices.IndexFunc(now, func(m v1alpha1.ModelUsage) bool { return m.Model == before.Model })
		if i < 0 || now[i].Total.Core < before.Total.Core {
			l.t.Fatalf("%s: the sums went back: %+v, %+v", when, before, now)
		}
		for _, e := range before.Granted {
			j := slices.IndexFunc(now[i].Granted, func(n v1alpha1.NamespaceUsage) bool { return n.Namespace == e.Namespace })
			if j < 0 || now[i].Granted[j].Core < e.Core || now[i].Granted[j].Mem < e.Mem {
				l.t.Fatalf("%s: the sums went back: %+v, %+v", when, e, now[i])
			}
		}
	}
	l.sums = now
}

func text(models []v1alpha1.ModelUsage) (all string) {
	for _, m := range models {
		all += fmt.Sprintf("%s total %v free %v unavailable %v unknown %v", m.Model, m.Total, m.Free, m.Unavailable, m.Unknown)
		for _, e := range m.Granted {
			if e.DeviceTime != (v1alpha1.DeviceTime{}) {
				all += fmt.Sprintf(", %s %v", e.Namespace, e.DeviceTime)
			}
		}
		all += "\n"
	}
	return all
}

// A day and a half of grants, releases, cordons, devices that fail, go and come, and agents that are killed
// at any of their writes, or between them: what the account says is what a count of each second
// says. Nothing is counted twice or lost, in the file, the object and the metrics.
func TestLife(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			l := &lives{world: newWorld(t, seed), seconds: map[int64]map[string]second{}, through: begin.Unix()}
			l.start()
			all := slices.Clone(l.devices)
			for l.now.Before(begin.Add(36 * time.Hour)) {
				l.act(all)
				if l.account == nil {
					l.pass(time.Duration(l.random.Int64N(int64(30 * time.Minute))))
					if l.random.IntN(2) == 0 {
						l.act(all) // while it is away
						l.pass(time.Duration(l.random.Int64N(int64(time.Minute))))
					}
					l.restart()
				}
				if l.random.IntN(4) == 0 {
					l.compare("alive")
				}
			}
			if quarters := 36*4 + l.kills; l.published > quarters+2 || l.kills == 0 {
				t.Errorf("published %d times, killed %d times", l.published, l.kills)
			}
		})
	}
}

// act has something happen, and the agent see it.
func (l *lives) act(all []v1alpha1.DeviceStatus) {
	i := l.random.IntN(len(l.ledger.Spec.Devices))
	d := &l.ledger.Spec.Devices[i]
	switch n := l.random.IntN(100); {
	case n < 30:
		l.grant(i, fmt.Sprint("team-", l.random.IntN(4)), v1alpha1.Percent(l.random.IntN(60)), v1alpha1.MiB(1+l.random.IntN(600)))
	case n < 50 && len(d.Slices) > 0:
		pod := d.Slices[l.random.IntN(len(d.Slices))].Pod
		d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod })
	case n < 54:
		l.ledger.Spec.Cordons = append(l.ledger.Spec.Cordons, v1alpha1.Cordon{UUID: d.UUID, Since: metav1.NewTime(l.now)})
	case n < 58:
		l.ledger.Spec.Cordons = nil
	case n < 61 && len(l.devices) > 1: // one goes
		at := l.random.IntN(len(l.devices))
		l.devices = slices.Delete(slices.Clone(l.devices), at, at+1)
	case n < 64: // all are there again
		l.devices = slices.Clone(all)
	case n < 68:
		l.devices = slices.Clone(l.devices)
		at := l.random.IntN(len(l.devices))
		l.devices[at].Healthy = !l.devices[at].Healthy
	case n < 70 && l.account != nil: // killed between two writes, with what it has not written
		l.account = nil
	case n < 80 && l.kill < 0: // killed at one of the next writes
		l.kill, l.after = 1+l.random.IntN(6), l.random.IntN(2) == 0
	case n < 84:
		l.fails = errConflict
	case n < 86:
		l.fails = errors.New("the API server is away")
	}
	l.changed()
	for range l.random.IntN(12) {
		l.pass(time.Duration(l.random.Int64N(int64(20 * time.Second))))
		l.look()
	}
	if l.random.IntN(8) == 0 {
		l.pass(time.Duration(l.random.Int64N(int64(40 * time.Minute))))
		l.look()
	}
}
