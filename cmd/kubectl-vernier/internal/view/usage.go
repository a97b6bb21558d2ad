// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// UsageWhat says what a row of usage is of.
type UsageWhat string

// Rows of a model, in this order: those up to unknown add up to its total. UsageSum is the sum of the totals
// of several models.
const (
	UsageGranted     UsageWhat = "granted"
	UsageOthers      UsageWhat = "others"
	UsageFree        UsageWhat = "free"
	UsageUnavailable UsageWhat = "unavailable"
	UsageUnknown     UsageWhat = "unknown"
	UsageTotal       UsageWhat = "total"
	UsageSum         UsageWhat = "sum"
)

// UsageRow is the time that one namespace, or nobody, had of the GPUs of a model.
type UsageRow struct {
	// Model is empty in the sum of all models.
	Model string `json:"model,omitempty"`
	// Namespace is that of a granted row; empty there by model.
	Namespace string    `json:"namespace,omitempty"`
	What      UsageWhat `json:"what"`
	// The exact figures.
	Core v1alpha1.PercentSeconds `json:"corePercentSeconds"`
	Mem  v1alpha1.MiBSeconds     `json:"memMiBSeconds"`
	// Used is nil where nothing was measured.
	Used *int64 `json:"usedMilliseconds,omitempty"`
	// The same in hours, and what they cost; nil without a price for the model.
	GPUHours  float64  `json:"gpuHours"`
	GiBHours  float64  `json:"gibHours"`
	UsedHours *float64 `json:"usedHours,omitempty"`
	Cost      *float64 `json:"cost,omitempty"`
}

// UsageReport is the printed form of usage.
type UsageReport struct {
	List[UsageRow]
	// From and Through are the time that is counted.
	From    metav1.Time `json:"from"`
	Through metav1.Time `json:"through"`
}

// UsageOf adds up accounts, from an hour on.
type UsageOf struct {
	From time.Time
	// Through is the latest until when an account counts.
	Through time.Time
	Nodes   int
	// Later are the nodes that counted before From and have no hours from there. Behind are the
	// nodes that have published nothing for an hour.
	Later, Behind []string

	models map[string]*modelOf
}

type modelOf struct {
	v1alpha1.ModelUsage
	granted map[string]v1alpha1.NamespaceUsage
}

// Add adds the hours of a node's account.
func (o *UsageOf) Add(u *v1alpha1.SliceUsage, now time.Time) {
	s := &u.Status
	o.Nodes++
	if s.Through.After(o.Through) {
		o.Through = s.Through.Time
	}
	if now.Sub(s.Through.Time) > time.Hour {
		o.Behind = append(o.Behind, u.Name)
	}
	if len(s.Hours) > 0 && s.Hours[0].Start.After(o.From) && s.Since.Time.Before(s.Hours[0].Start.Time) {
		o.Later = append(o.Later, u.Name)
	}
	for _, h := range s.Hours {
		if h.Start.Time.Before(o.From) {
			continue
		}
		for i := range h.Models {
			o.add(&h.Models[i])
		}
	}
}

func (o *UsageOf) add(m *v1alpha1.ModelUsage) {
	of := o.models[m.Model]
	if of == nil {
		of = &modelOf{granted: map[string]v1alpha1.NamespaceUsage{}}
		if o.models == nil {
			o.models = map[string]*modelOf{}
		}
		o.models[m.Model] = of
	}
	of.Total.Add(m.Total)
	of.Free.Add(m.Free)
	of.Unavailable.Add(m.Unavailable)
	of.Unknown.Add(m.Unknown)
	for _, e := range m.Granted {
		of.granted[e.Namespace] = plus(of.granted[e.Namespace], e)
	}
}

func plus(sum, e v1alpha1.NamespaceUsage) v1alpha1.NamespaceUsage {
	sum.Add(e.DeviceTime)
	if e.UsedMilliseconds != nil {
		used := *e.UsedMilliseconds
		if sum.UsedMilliseconds != nil {
			used += *sum.UsedMilliseconds
		}
		sum.UsedMilliseconds = &used
	}
	return sum
}

// Models are the models that were counted, by name.
func (o *UsageOf) Models() []string { return slices.Sorted(maps.Keys(o.models)) }

// Rows are those of all models. With a namespace others' are one row; by model all namespaces'
// are. The price is per GPU-hour.
func (o *UsageOf) Rows(byModel bool, namespace string, price func(model string) (float64, bool)) []UsageRow {
	var rows []UsageRow
	var all v1alpha1.NamespaceUsage
	var cost *float64
	for _, model := range o.Models() {
		of := o.models[model]
		row := func(what UsageWhat, name string, e v1alpha1.NamespaceUsage) UsageRow {
			r := usageRow(what, e)
			r.Model, r.Namespace = model, name
			if p, known := price(model); known {
				costs := r.GPUHours * p
				r.Cost = &costs
			}
			return r
		}
		var granted, others v1alpha1.NamespaceUsage
		for _, name := range slices.Sorted(maps.Keys(of.granted)) {
			e := of.granted[name]
			granted = plus(granted, e)
			switch {
			case byModel:
			case namespace != "" && name != namespace:
				others = plus(others, e)
			default:
				rows = append(rows, row(UsageGranted, name, e))
			}
		}
		if byModel {
			rows = append(rows, row(UsageGranted, "", granted))
		} else if others != (v1alpha1.NamespaceUsage{}) {
			rows = append(rows, row(UsageOthers, "", others))
		}
		for _, rest := range []struct {
			what UsageWhat
			time v1alpha1.DeviceTime
		}{{UsageFree, of.Free}, {UsageUnavailable, of.Unavailable}, {UsageUnknown, of.Unknown}} {
			if rest.what == UsageFree || rest.time != (v1alpha1.DeviceTime{}) {
				rows = append(rows, row(rest.what, "", v1alpha1.NamespaceUsage{DeviceTime: rest.time}))
			}
		}
		total := row(UsageTotal, "", v1alpha1.NamespaceUsage{DeviceTime: of.Total, UsedMilliseconds: granted.UsedMilliseconds})
		rows = append(rows, total)
		all = plus(all, v1alpha1.NamespaceUsage{DeviceTime: of.Total, UsedMilliseconds: granted.UsedMilliseconds})
		if total.Cost != nil {
			sum := *total.Cost
			if cost != nil {
				sum += *cost
			}
			cost = &sum
		}
	}
	if len(o.models) > 1 {
		sum := usageRow(UsageSum, all)
		sum.Cost = cost
		rows = append(rows, sum)
	}
	return rows
}

func usageRow(what UsageWhat, e v1alpha1.NamespaceUsage) UsageRow {
	r := UsageRow{What: what, Core: e.Core, Mem: e.Mem, Used: e.UsedMilliseconds,
		GPUHours: float64(e.Core) / float64(v1alpha1.PerGPUHour), GiBHours: float64(e.Mem) / float64(v1alpha1.PerGiBHour)}
	if r.Used != nil {
		hours := float64(*r.Used) / 3.6e6
		r.UsedHours = &hours
	}
	return r
}

// UsageTable shows usage; COST is there with prices only.
func UsageTable(rows []UsageRow, prices, wide bool) Table {
	t := Table{header: []string{"MODEL", "NAMESPACE", "GPU-HOURS", "USED-HOURS", "GiB-HOURS"}}
	if prices {
		t.header = append(t.header, "COST")
	}
	t.header = append(t.header, "PERCENT-SECONDS", "USED-MILLISECONDS", "MiB-SECONDS")
	for _, r := range rows {
		name, used := r.Namespace, ""
		if name == "" {
			name = "(" + string(r.What) + ")"
		}
		if r.Used != nil {
			used = strconv.FormatInt(*r.Used, 10)
		}
		row := []string{r.Model, name, hundredths(&r.GPUHours), hundredths(r.UsedHours), hundredths(&r.GiBHours)}
		if prices {
			row = append(row, hundredths(r.Cost))
		}
		t.rows = append(t.rows, append(row, strconv.FormatInt(int64(r.Core), 10), used, strconv.FormatInt(int64(r.Mem), 10)))
	}
	return t.narrow(wide, "PERCENT-SECONDS")
}

func hundredths(f *float64) string {
	if f == nil {
		return ""
	}
	return strconv.FormatFloat(*f, 'f', 2, 64)
}

// Prices are those of a GPU-hour, by a model's name or words of it.
type Prices []price

type price struct {
	model string
	of    v1alpha1.AllowList
	price float64
}

// ParsePrices reads MODEL=PRICE, one each. A model matches as in the annotation gpu-model. Errors name
// what they are from.
func ParsePrices(from string, all []string) (Prices, error) {
	var list Prices
	for _, text := range all {
		model, amount, found := strings.Cut(text, "=")
		f, err := strconv.ParseFloat(amount, 64)
		if !found || err != nil || !(f >= 0 && f <= 1e9) {
			return nil, fmt.Errorf("%s %q: write MODEL=PRICE, with the price of a GPU-hour such as 2.50", from, text)
		}
		of, err := v1alpha1.ParseAllowList(model)
		if err != nil || len(of.Only()) != 1 {
			return nil, fmt.Errorf("%s %q: write one model's name, or words of it, before =", from, text)
		}
		list = append(list, price{model, of, f})
	}
	// The longest first: it says most.
	slices.SortStableFunc(list, func(a, b price) int { return len(b.model) - len(a.model) })
	return list, nil
}

// Of is the price of a model. The longest name that matches counts.
func (p Prices) Of(model string) (float64, bool) {
	for _, one := range p {
		if one.of.Allows(model) {
			return one.price, true
		}
	}
	return 0, false
}

// Unused are the prices that are of none of the models.
func (p Prices) Unused(models []string) (names []string) {
	for _, one := range p {
		if !slices.ContainsFunc(models, one.of.Allows) {
			names = append(names, one.model)
		}
	}
	return names
}
