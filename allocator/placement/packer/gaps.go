// SPDX-License-Identifier: Apache-2.0

package packer

import "math"

// wanted is what the mean arrival asks for: devices by the prices of its shares, in
// thousandths, the CPU that goes with them, and CPU of pods without a device.
type wanted struct{ devices, cpu, only float64 }

// eighths of a share's worth that may go by its CPU.
const eighths = 8

// doubt is how much lower a bound must be, after one arrival, than the one at which
// devices alone count: what few have asked for is a matter of chance.
const doubt = 0.1

// setGaps prices gaps: by what can be cut from them, less what the shares' CPU or
// memory costs.
//
// Were each share worth its part of a device alone, hosts would look as if they could
// be filled with those that need little CPU. But the others keep coming too, and where
// CPU is what runs out it matters that they go where it is plenty. So a part of the
// worth goes by CPU: the part at which all hosts together are worth least. That is the
// dual again, of serving all that arrives in proportion: worth is only shifted between
// pods, the mean arrival's stays the same, and the least is the closest bound on how
// many of them there is room for.
func (p *prices) setGaps(e *Engine, parts []float64, demand *bySize) {
	var w wanted
	for i := range e.classes {
		c, s := &e.classes[i], e.shape(i)
		switch {
		case s.GPUs == 0:
			w.only += parts[i] * float64(c.CPU)
		case demand[s.size] > 0:
			w.devices += parts[i] * float64(s.GPUs) * float64(Whole) * e.shares[s.size]
			w.cpu += parts[i] * float64(c.CPU)
		}
	}
	p.setGains(e, parts, demand, 1, 0)
	if w.devices == 0 || w.cpu == 0 {
		return
	}
	least := p.bound(e, &w) * (1 - doubt/math.Sqrt(float64(e.mix.arrivals+1)))
	for q := 1; q < eighths; q++ {
		next, part := *p, float64(q)/eighths
		next.setGains(e, parts, demand, 1-part, part*w.devices/w.cpu)
		if b := next.bound(e, &w); b < least {
			least, p.value = b, next.value
		}
	}
}

// setGains prices gaps when a share is worth so much of what its size costs, and so
// much for each thousandth of a core.
func (p *prices) setGains(e *Engine, parts []float64, demand *bySize, ofSize, perCPU float64) {
	for k := range hostPrices {
		// A share is worth what a random pod of its size gains.
		var values bySize
		for i := range e.classes {
			c, s := &e.classes[i], e.shape(i)
			if s.GPUs == 0 || demand[s.size] == 0 {
				continue
			}
			host := ((p.cpu[k]-perCPU)*float64(c.CPU) + p.mem[k]*float64(c.HostMem)) / float64(c.GPUs)
			gain := max(0, ofSize*float64(Whole)*e.shares[s.size]-host)
			values[s.size] += gain * parts[i] * float64(c.GPUs) / demand[s.size]
		}
		for g, best := range values.cut() {
			p.value[g][k] = best
		}
	}
}

// bound is what all hosts are worth when empty, in mean arrivals: no more of them can
// be served, at any price of CPU that pods without a device pay.
func (p *prices) bound(e *Engine, w *wanted) float64 {
	least := math.Inf(1)
	for low := range cpuPrices + 1 {
		all := 0.0
		for i := range e.kinds {
			h := &e.kinds[i]
			// They leave no CPU for less than they pay.
			worth := math.Inf(1)
			for k := low; k <= cpuPrices; k++ {
				worth = min(worth, p.value[steps][k]*float64(h.Devices)+p.cpu[k]*float64(h.CPU))
			}
			all += worth * float64(h.nodes)
		}
		least = min(least, all/(w.devices+p.cpu[low]*w.only))
	}
	return least
}
