// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// hour is an hour in seconds.
const hour = 3600

// book is an account: whole seconds and whole amounts, in hours of UTC and in sums.
type book struct{ v1alpha1.SliceUsageStatus }

// share is what a namespace has of a device.
type share struct {
	namespace string
	amounts   v1alpha1.Amounts
	// from is since when, in Unix seconds.
	from int64
}

// span is a device over some time.
type span struct {
	model  string
	mem    v1alpha1.MiB
	shares []share
	// rest is where the time that no share has is counted.
	rest func(*v1alpha1.ModelUsage) *v1alpha1.DeviceTime
}

func free(m *v1alpha1.ModelUsage) *v1alpha1.DeviceTime        { return &m.Free }
func unavailable(m *v1alpha1.ModelUsage) *v1alpha1.DeviceTime { return &m.Unavailable }
func unknown(m *v1alpha1.ModelUsage) *v1alpha1.DeviceTime     { return &m.Unknown }

// charge enters the time of devices up to end, which is not part of it, in the hours that it
// is in and in the sums.
func (b *book) charge(from, end int64, all []span) {
	for from < end {
		to := min(end, from-from%hour+hour)
		for _, s := range all {
			chargeIn(b.hour(from), v1alpha1.MaxUsageHourEntries, s, from, to)
			chargeIn(&b.Sums, v1alpha1.MaxUsageSumEntries, s, from, to)
		}
		from = to
	}
}

func chargeIn(models *[]v1alpha1.ModelUsage, most int, s span, from, end int64) {
	m := modelIn(models, s.model)
	var had v1alpha1.DeviceTime
	var sum v1alpha1.Amounts
	for _, of := range s.shares {
		sum.Core, sum.Mem = sum.Core+of.amounts.Core, sum.Mem+of.amounts.Mem
		if t := times(of.amounts, end-max(from, of.from)); t != (v1alpha1.DeviceTime{}) {
			entryIn(*models, m, of.namespace, most).Add(t)
			had.Add(t)
		}
	}
	// A device that has less memory than when it was entered in the ledger keeps its slices.
	total := times(v1alpha1.Amounts{Core: max(v1alpha1.WholeGPU, sum.Core), Mem: max(s.mem, sum.Mem)}, end-from)
	m.Total.Add(total)
	total.Sub(had)
	s.rest(m).Add(total)
}

// times is an amount for so many seconds.
func times(a v1alpha1.Amounts, seconds int64) v1alpha1.DeviceTime {
	seconds = max(seconds, 0)
	return v1alpha1.DeviceTime{Core: v1alpha1.PercentSeconds(int64(a.Core) * seconds), Mem: v1alpha1.MiBSeconds(int64(a.Mem) * seconds)}
}

// use enters measured time of a namespace, in the hour of that second.
func (b *book) use(at int64, model, namespace string, milliseconds int64) {
	for _, in := range []struct {
		models *[]v1alpha1.ModelUsage
		most   int
	}{{b.hour(at), v1alpha1.MaxUsageHourEntries}, {&b.Sums, v1alpha1.MaxUsageSumEntries}} {
		e := entryIn(*in.models, modelIn(in.models, model), namespace, in.most)
		if e.UsedMilliseconds == nil {
			e.UsedMilliseconds = new(int64)
		}
		*e.UsedMilliseconds += milliseconds
	}
}

// hour is the one of that second: the last, or a new one. What is older than the last is
// counted in the last.
func (b *book) hour(at int64) *[]v1alpha1.ModelUsage {
	start := at - at%hour
	if n := len(b.Hours); n == 0 || b.Hours[n-1].Start.Unix() < start {
		b.forget()
		b.Hours = append(b.Hours, v1alpha1.UsageHour{Start: unix(start)})
		b.trim()
	}
	return &b.Hours[len(b.Hours)-1].Models
}

// trim drops the oldest hours beyond the bounds of an account.
func (b *book) trim() {
	entries := 0
	of := func(h int) int { return len(b.Hours[h].Models) + count(b.Hours[h].Models) }
	for i := range b.Hours {
		entries += of(i)
	}
	drop := 0
	for len(b.Hours)-drop > 1 && (len(b.Hours)-drop > v1alpha1.MaxUsageHours || entries > v1alpha1.MaxUsageEntries) {
		entries -= of(drop)
		drop++
	}
	b.Hours = slices.Delete(b.Hours, 0, drop)
}

// forget makes room in sums that are full: namespaces that had nothing in the last day are no
// longer named. It is looked at once an hour.
func (b *book) forget() {
	if count(b.Sums) < v1alpha1.MaxUsageSumEntries {
		return
	}
	type named struct{ model, namespace string }
	seen := map[named]bool{}
	for _, h := range b.Hours[max(len(b.Hours)-24, 0):] {
		for _, m := range h.Models {
			for _, e := range m.Granted {
				seen[named{m.Model, e.Namespace}] = true
			}
		}
	}
	for i := range b.Sums {
		m := &b.Sums[i]
		gone := func(e v1alpha1.NamespaceUsage) bool {
			return e.Namespace != v1alpha1.OtherNamespaces && !seen[named{m.Model, e.Namespace}]
		}
		var others v1alpha1.NamespaceUsage
		for _, e := range m.Granted {
			if gone(e) {
				join(&others, e)
			}
		}
		if m.Granted = slices.DeleteFunc(m.Granted, gone); others != (v1alpha1.NamespaceUsage{}) {
			join(entryIn(b.Sums, m, v1alpha1.OtherNamespaces, 0), others)
		}
	}
}

// merge adds an earlier account of the node to this one.
func (b *book) merge(before *v1alpha1.SliceUsageStatus) {
	if before.Through.IsZero() {
		return
	}
	b.Since = before.Since
	for _, m := range before.Sums {
		b.mergeIn(&b.Sums, v1alpha1.MaxUsageSumEntries, m)
	}
	own := b.Hours
	b.Hours = slices.Clone(before.Hours)
	for _, h := range own {
		at := b.hour(h.Start.Unix())
		for _, m := range h.Models {
			b.mergeIn(at, v1alpha1.MaxUsageHourEntries, m)
		}
	}
	b.trim()
}

func (b *book) mergeIn(models *[]v1alpha1.ModelUsage, most int, add v1alpha1.ModelUsage) {
	m := modelIn(models, add.Model)
	m.Total.Add(add.Total)
	m.Free.Add(add.Free)
	m.Unavailable.Add(add.Unavailable)
	m.Unknown.Add(add.Unknown)
	for _, e := range add.Granted {
		join(entryIn(*models, m, e.Namespace, most), e)
	}
}

func join(to *v1alpha1.NamespaceUsage, e v1alpha1.NamespaceUsage) {
	to.Add(e.DeviceTime)
	if e.UsedMilliseconds != nil {
		sum := *e.UsedMilliseconds
		if to.UsedMilliseconds != nil {
			sum += *to.UsedMilliseconds
		}
		to.UsedMilliseconds = &sum
	}
}

// modelIn is the entry of a model, which is made where it is missing.
func modelIn(models *[]v1alpha1.ModelUsage, model string) *v1alpha1.ModelUsage {
	find := func() (int, bool) {
		return slices.BinarySearchFunc(*models, model, func(m v1alpha1.ModelUsage, name string) int { return strings.Compare(m.Model, name) })
	}
	i, found := find()
	if !found && len(*models) >= v1alpha1.MaxUsageModels {
		model = v1alpha1.OtherModels
		i, found = find()
	}
	if !found {
		*models = slices.Insert(*models, i, v1alpha1.ModelUsage{Model: model})
	}
	return &(*models)[i]
}

// entryIn is the entry of a namespace under a model, one of those. It is made where it is missing, as long
// as there are fewer than most.
func entryIn(models []v1alpha1.ModelUsage, m *v1alpha1.ModelUsage, namespace string, most int) *v1alpha1.NamespaceUsage {
	find := func() (int, bool) {
		return slices.BinarySearchFunc(m.Granted, namespace, func(e v1alpha1.NamespaceUsage, name string) int { return strings.Compare(e.Namespace, name) })
	}
	i, found := find()
	if !found && count(models) >= most {
		namespace = v1alpha1.OtherNamespaces
		i, found = find()
	}
	if !found {
		m.Granted = slices.Insert(m.Granted, i, v1alpha1.NamespaceUsage{Namespace: namespace, Kind: v1alpha1.UsageGuaranteed})
	}
	return &m.Granted[i]
}

func count(models []v1alpha1.ModelUsage) (n int) {
	for i := range models {
		n += len(models[i].Granted)
	}
	return n
}

func unix(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0).UTC()) }
