// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math"
	"slices"
)

const (
	// hostPrices is how many pairs of prices of CPU and memory of the host a node
	// is valued at: nothing, cpuPrices of CPU alone, the others of memory alone.
	hostPrices = 9
	cpuPrices  = 5
	// rare is the part of all shares below which a size has no price: a gap is not
	// kept for what hardly ever comes.
	rare = 0.002
	// smooth is the weight of the prices before.
	smooth = 0.5
	// levels of free CPU that usable room is tabled by, and how many steps of CPU
	// are told apart to find the level.
	levels   = 64
	cpuSteps = 512
	// maxGroups is how many shapes of requests for several devices are told apart.
	maxGroups = 12
)

// group is a kind of requests for several devices.
type group struct {
	gpus, size int
	cpu        Milli
}

// insist is a demand that only some models can serve.
type insist struct {
	// models allowed, a set of bits.
	models uint64
	// mean and square of the devices asked for by an arrival.
	mean, square float64
}

// prices is what the engine has learnt, as tables. All worth is in thousandths of
// a device.
type prices struct {
	// demand is how many devices the mean arrival asks for.
	demand float64
	// cpu and mem are prices of a thousandth of a core and of a MiB of the host.
	cpu, mem [hostPrices]float64
	// value is what a gap is worth at each pair of them.
	value [steps + 1][hostPrices]float64
	// spare is what a thousandth of a core is worth on average.
	spare float64
	// level is the level of so many steps of CPU: how many of the amounts that
	// requests ask for are within it.
	step  Milli
	level [cpuSteps]uint8
	// room[model][level][gap] is the part of a gap that a random request for one
	// device can use at that level of free CPU.
	room [][levels]bySize
	// groups are the requests for several devices, likely[model][level][group] how
	// frequent those are that the model and the CPU allow.
	groups []group
	likely [][levels][maxGroups]float64
	// slot is what a place for a whole group is worth beyond its devices.
	slot [maxGroups]float64
	// places[group][gaps] is how many such places so many gaps of a node are, and perCPU how
	// many devices of a group a thousandth of a core serves. turned is the part of what is
	// in use that came in place of others, when the places were tabled.
	places [maxGroups][MaxDevices + 1]float64
	perCPU [maxGroups]float64
	turned float64
	// insist are the demands that only some models can serve. unsure is how
	// frequent they are believed to be beyond that.
	insist []insist
	unsure float64
}

// learn works out prices from what has arrived, without what is scarce.
func (e *Engine) learn() *prices {
	p := &prices{unsure: e.mix.unseen(priorAsk)}
	parts := e.mix.parts()
	p.setLevels(e, parts)
	for i := range e.classes {
		p.demand += parts[i] * e.shape(i).part()
	}
	p.setValues(e, parts)
	p.setGroups(e, parts)
	p.setRoom(e, parts)
	return p
}

func (e *Engine) shape(class int) *shape { return &e.shapes[e.classes[class].shape] }

// setValues prices shares, by the duals of cutting devices into what arrives, and the
// host's CPU and memory; and by these the gaps.
func (p *prices) setValues(e *Engine, parts []float64) {
	var demand bySize
	var cpu, mem float64
	for i := range e.classes {
		if s := e.shape(i); s.GPUs > 0 {
			demand[s.size] += parts[i] * float64(s.GPUs)
			cpu += parts[i] * float64(e.classes[i].CPU)
			mem += parts[i] * float64(e.classes[i].HostMem)
		}
	}
	for k := 1; k < hostPrices; k++ {
		// From an eighth to twice, for memory from a quarter, of what there is to
		// gain with it on average.
		if k <= cpuPrices && cpu > 0 {
			p.cpu[k] = float64(Whole) * p.demand / cpu * float64(int(1)<<k) / 16
		} else if k > cpuPrices && mem > 0 {
			p.mem[k] = float64(Whole) * p.demand / mem * float64(int(1)<<(k-cpuPrices)) / 8
		}
	}
	if cpu > 0 {
		p.spare = float64(Whole) * p.demand / cpu
	}
	for size, sum := 0, demand.sum(); size <= steps; size++ {
		if demand[size] < rare*sum {
			demand[size] = 0
		}
	}
	shares := sharePrices(&demand)
	// Many sets of prices can be as good as each other: the mean of several
	// changes less from one time to the next.
	for size, old := range e.shares {
		if old > 0 && demand[size] > 0 {
			shares[size] += (old - shares[size]) * smooth
		}
	}
	e.shares = shares
	p.setGaps(e, parts, &demand)
}

// notable is a difference that nodes are scored anew for, in thousandths of a
// device.
const notable = 5

// differ reports whether values or usable room are notably others.
func (p *prices) differ(old *prices) bool {
	if p.step != old.step || p.level != old.level || len(p.room) != len(old.room) || !slices.Equal(p.groups, old.groups) {
		return true
	}
	for g := range p.value {
		for k, v := range p.value[g] {
			if math.Abs(v-old.value[g][k]) > notable {
				return true
			}
		}
	}
	for m := range p.room {
		for l := range p.room[m] {
			for g, r := range p.room[m][l] {
				if roomWeight*math.Abs(r-old.room[m][l][g]) > notable {
					return true
				}
			}
		}
	}
	return false
}
