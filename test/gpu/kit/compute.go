// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kind is a way to launch, and whether its kernel wrote what it should.
type kind struct {
	Kind   string
	There  bool
	Result int
	Right  bool
}

// launches: every kind of launch works within a share as it does without.
func launches(kernels string) func(context.Context, *kit, *row) error {
	return func(ctx context.Context, k *kit, r *row) error {
		for _, s := range []share{nil, append(core(50), memory(k.limit())...)} {
			var got struct {
				Kinds  []kind
				Global int
			}
			if err := k.ask(ctx, s, &got, k.argv(kernels, "kinds")...); err != nil {
				return err
			}
			if err := k.rightKinds(got.Kinds); err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
			// The kernels of a library are another module with a global of its own.
			if r.Set("kinds", len(got.Kinds)); !k.simulated && got.Global < 4 {
				return fmt.Errorf("%v: the module's global counts %d launches", s, got.Global)
			}
		}
		return nil
	}
}

func (k *kit) rightKinds(all []kind) error {
	var wrong []string
	for _, one := range all {
		if one.There && (one.Result != 0 || !one.Right && !k.simulated) {
			wrong = append(wrong, fmt.Sprintf("%s: error %d, right result %t", one.Kind, one.Result, one.Right))
		}
	}
	if len(wrong) > 0 || len(all) == 0 {
		return fmt.Errorf("%d kinds of launches: %s", len(all), strings.Join(wrong, "; "))
	}
	return nil
}

// loaded is what a load has done.
type loaded struct {
	Launches uint64
	Seconds  float64
	Longest  float64 `json:"longest_ms"`
}

func (l loaded) rate() float64 { return float64(l.Launches) / l.Seconds }

// work is a load: kernels of so many microseconds, launched in this way.
type work struct {
	us   float64
	kind string
}

func (k *kit) loadArgs(w work, seconds float64) []string {
	return k.argv("kernels.ptx", "load", fmt.Sprint(seconds), strconv.Itoa(int(w.us*k.perUS)), w.kind, strconv.Itoa(max(2, int(50000/w.us))))
}

// nativeRate is the launches a second of a load that is alone and not limited.
func (k *kit) nativeRate(ctx context.Context, w work) (float64, error) {
	key := fmt.Sprint(w)
	if rate := k.native[key]; rate != 0 {
		return rate, nil
	}
	done, err := k.together(ctx, []share{nil}, k.loadArgs(w, k.seconds(2)))
	if err != nil {
		return 0, err
	}
	rate := done[0].rate()
	if k.simulated {
		rate = max(rate, 1e6/w.us) // whatever else this machine does
	}
	k.native[key] = rate
	return rate, nil
}

// together runs programs side by side, from the same moment on; the commands are as many
// as the shares, or one for all.
func (k *kit) together(ctx context.Context, shares []share, commands ...[]string) ([]loaded, error) {
	var all []*process
	defer func() {
		for _, p := range all {
			_ = p.cmd.Cancel()
			_ = p.cmd.Wait()
		}
	}()
	for i, s := range shares {
		p, err := k.start(ctx, s, commands[min(i, len(commands)-1)]...)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.ready(); err != nil {
			return nil, err
		}
	}
	for _, p := range all {
		if err := p.goOn(); err != nil {
			return nil, err
		}
	}
	done := make([]loaded, len(all))
	for i, p := range all {
		if err := p.result(&done[i]); err != nil {
			return nil, err
		}
	}
	all = nil
	return done, nil
}

// tolerance is how far from its quota a share may be, in points, to pass. The figures say
// how well it holds.
const tolerance = 6

func (k *kit) within(what string, quota int, percent float64) error {
	// A simulated GPU's machine may have no time to launch: only the ceiling is certain.
	if percent > float64(quota+tolerance) || percent < float64(quota-tolerance) && !k.simulated {
		return fmt.Errorf("%s: %.1f percent of the native throughput, with a quota of %d", what, percent, quota)
	}
	return nil
}

// quotas: a load alone gets its quota.
func quotas(ctx context.Context, k *kit, r *row) error {
	w := work{1000, "kernel"}
	native, err := k.nativeRate(ctx, w)
	if err != nil {
		return err
	}
	for _, quota := range []int{10, 30, 60} {
		done, err := k.together(ctx, []share{core(quota)}, k.loadArgs(w, k.seconds(5)))
		if err != nil {
			return err
		}
		percent := 100 * done[0].rate() / native
		r.Set(fmt.Sprintf("got_at_%d", quota), percent)
		if err := k.within("alone", quota, percent); err != nil {
			return err
		}
	}
	return nil
}

// kindsLimited: however work is launched, it is held to its quota.
func kindsLimited(ctx context.Context, k *kit, r *row) error {
	const quota = 30
	for _, name := range []string{"streams", "graph", "cooperative", "library", "ex", "sync"} {
		w := work{1000, name}
		whole := w
		if name == "sync" {
			whole.kind = "kernel" // waiting for each, no program has all of the device's time
		}
		native, err := k.nativeRate(ctx, whole)
		if err != nil {
			if strings.Contains(err.Error(), "none of this kind") {
				r.Set(name, "not on this driver")
				continue
			}
			return err
		}
		done, err := k.together(ctx, []share{core(quota)}, k.loadArgs(w, k.seconds(4)))
		if err != nil {
			return err
		}
		percent := 100 * done[0].rate() / native
		r.Set(name, percent)
		if err := k.within(name, quota, percent); err != nil {
			return err
		}
	}
	return nil
}

// sideBySide runs two loads at a time, by quota or natively, and sets their parts of what
// each has natively alone, and what NVML says of them.
func (k *kit) sideBySide(ctx context.Context, r *row, prefix string, seconds float64, quotas [2]int, loads [2]work) (percent [2]float64, err error) {
	var shares []share
	var commands [][]string
	var native [2]float64
	for i, w := range loads {
		if native[i], err = k.nativeRate(ctx, w); err != nil {
			return percent, err
		}
		var s share
		if quotas[i] != 0 {
			s = core(quotas[i])
		}
		shares, commands = append(shares, s), append(commands, k.loadArgs(w, seconds))
	}
	watch, err := k.start(ctx, nil, k.argv("kernels.ptx", "shares", fmt.Sprint(seconds))...)
	if err != nil {
		return percent, err
	}
	done, err := k.together(ctx, shares, commands...)
	var seen struct {
		Processes []struct {
			PID     int
			Percent float64
		}
	}
	nvmlErr := watch.result(&seen)
	if err != nil {
		return percent, err
	}
	for i, d := range done {
		percent[i] = 100 * d.rate() / native[i]
		r.Set(fmt.Sprintf("%swork_%d", prefix, i+1), percent[i])
		r.Set(fmt.Sprintf("%slongest_launch_ms_%d", prefix, i+1), d.Longest)
	}
	if nvmlErr != nil {
		r.Set(prefix+"nvml", nvmlErr.Error())
		return percent, nil
	}
	var busy []float64
	for _, p := range seen.Processes {
		if p.Percent >= 1 {
			busy = append(busy, p.Percent)
		}
	}
	slices.Sort(busy)
	r.Set(prefix+"nvml_percent", fmt.Sprint(busy))
	return percent, nil
}

// beside: two shares side by side get their quotas.
func beside(ctx context.Context, k *kit, r *row) error {
	w := work{1000, "kernel"}
	return k.besideEach(ctx, r, "", [2]work{w, w})
}

// idleBeside: beside an idle slice that always has work a share gets what it gets alone.
func idleBeside(ctx context.Context, k *kit, r *row) error {
	const quota, most = 60, 3 // points that the share may lose
	w := work{1000, "kernel"}
	native, err := k.nativeRate(ctx, w)
	if err != nil {
		return err
	}
	load := k.loadArgs(w, k.seconds(6))
	alone, err := k.together(ctx, []share{core(quota)}, load)
	if err != nil {
		return err
	}
	both, err := k.together(ctx, []share{core(quota), {"--idle"}}, load)
	if err != nil {
		return err
	}
	before, after, rest := 100*alone[0].rate()/native, 100*both[0].rate()/native, 100*both[1].rate()/native
	r.Set("alone", before)
	r.Set("beside", after)
	r.Set("idle", rest)
	r.Set("longest_launch_ms", both[0].Longest)
	switch {
	case rest > 100-quota+tolerance:
		return fmt.Errorf("the idle slice has %.1f percent beside a share of %d", rest, quota)
	case k.simulated: // as with quotas
	case after < before-most:
		return fmt.Errorf("a share of %d percent has %.1f beside an idle slice, %.1f alone", quota, after, before)
	case rest < 0.9*(100-after)-tolerance:
		return fmt.Errorf("the idle slice has %.1f percent of the %.1f that are left", rest, 100-after)
	}
	return nil
}

func (k *kit) besideEach(ctx context.Context, r *row, prefix string, loads [2]work) error {
	quotas := [2]int{30, 60}
	percent, err := k.sideBySide(ctx, r, prefix, k.seconds(8), quotas, loads)
	for i := range quotas {
		if err == nil {
			err = k.within(fmt.Sprintf("%s%d beside %d", prefix, quotas[i], quotas[1-i]), quotas[i], percent[i])
		}
	}
	return err
}

// longBesideShort: kernels of 50 ms beside such of 200 µs, without the limiter and with it.
func longBesideShort(ctx context.Context, k *kit, r *row) error {
	loads := [2]work{{50000, "kernel"}, {200, "kernel"}}
	if _, err := k.sideBySide(ctx, r, "native_", k.seconds(4), [2]int{}, loads); err != nil {
		return err
	}
	return k.besideEach(ctx, r, "limited_", loads)
}

// unlimited measures how the driver shares out a device between two programs by itself.
func unlimited(ctx context.Context, k *kit, r *row) error {
	w := work{1000, "kernel"}
	_, err := k.sideBySide(ctx, r, "", k.seconds(4), [2]int{}, [2]work{w, w})
	return err
}

// costs measures what the limiter adds to a call, and what the driver takes for the events
// by which it measures a batch of launches.
func costs(ctx context.Context, k *kit, r *row) error {
	for _, call := range []string{"record", "query"} {
		var got struct{ NS float64 }
		if err := k.program(ctx, nil, &got, "cost", call); err != nil {
			return err
		}
		r.Set("event_"+call+"_ns", got.NS)
	}
	for _, call := range []string{"launch", "alloc", "info", "async"} {
		var ns [2][]float64
		for range 3 {
			for i, s := range []share{nil, append(core(90), memory(k.limit())...)} {
				var got struct{ NS float64 }
				if err := k.program(ctx, s, &got, "cost", call); err != nil {
					if call == "async" && strings.Contains(err.Error(), "has no cuMemAllocAsync") {
						return nil
					}
					return err
				}
				ns[i] = append(ns[i], got.NS)
			}
		}
		slices.Sort(ns[0])
		slices.Sort(ns[1])
		r.Set(call+"_native_ns", ns[0][1])
		r.Set(call+"_limited_ns", ns[1][1])
		r.Set(call+"_added_ns", ns[1][1]-ns[0][1])
	}
	return nil
}
