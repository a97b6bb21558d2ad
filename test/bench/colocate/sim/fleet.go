// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/rand/v2"
	"slices"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/usage"
)

const (
	// DeviceMem is the memory of a GPU, and reserve what idle slices leave of it.
	DeviceMem api.MiB = 80 << 10
	reserve   api.MiB = 512
	// lendsAfter is for how long memory has to be unused before it is lent, lendMargin what is kept above the use
	// at least, or a tenth of it. heldFor is the longest wait of an owner that needs it back, in seconds.
	lendsAfter         = 600.0
	lendMargin api.MiB = 512
	heldFor            = 2.0
	// misses is how many jobs in a row may find no room, before the queue is left for a step.
	misses = 20
)

// Pod is a guaranteed pod: its slice, and its use from a step on.
type Pod struct {
	Slice   advice.Amount
	From    int
	Samples []usage.Point
	// P95, Mean and Variance are of its duty in percent, as known before. Idle slices are placed by them.
	P95, Mean, Variance float64
}

// Know sets what is known of the pod's duty from samples before. Without any it is taken to use its quota.
func (p *Pod) Know(before []usage.Point) {
	p.P95, p.Mean, p.Variance = float64(p.Slice.Core), float64(p.Slice.Core), 0
	if len(before) == 0 {
		return
	}
	duties, sum, squares := make([]float64, len(before)), 0.0, 0.0
	for i, s := range before {
		duties[i] = s.Duty
		sum, squares = sum+s.Duty, squares+s.Duty*s.Duty
	}
	n := float64(len(before))
	p.P95, p.Mean, p.Variance = Rank(duties, 0.95), sum/n, max(0, squares/n-sum/n*sum/n)
}

// Rank is the value with the part q of all at or below it, and 0 of none. It sorts them.
func Rank(values []float64, q float64) float64 {
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
}

// Policy is how the fleet is shared.
type Policy struct {
	// Whole gives each pod a device. Bursts lets pods exceed their quotas. Idle runs batch work in idle slices,
	// and Lends has them use promised memory.
	Whole, Bursts, Idle, Lends bool
}

// Config is what a run depends on.
type Config struct {
	Policy
	Limiter
	// OnOff has all work of a sample come at once. Otherwise it comes evenly, in requests.
	OnOff bool
	// Request is the device time of one request, and Step that of a sample, in seconds.
	Request, Step float64
	// Steps is how many there are.
	Steps int
	// JobMem is a factor of the memory of jobs.
	JobMem float64
	Seed   uint64
	// Observe is called for each device and step with guaranteed pods, if it isn't nil.
	Observe func(Minute)
}

// Minute is one step of a device: its guaranteed slices, and what the idle slice wants, from 0 to 1. Pieces begin at 0 or
// later.
type Minute struct {
	Quotas []float64
	Bursts bool
	Pieces [][]Piece
	Idle   float64
}

// Figures are what a run came to. Times are seconds of one device.
type Figures struct {
	// Lasted is how long the run was. InUse is of devices with a guaranteed pod, and Most how many there were at once.
	Lasted, InUse float64
	Most          int
	// Guaranteed and Idle are with a kernel of such a slice. Lost is what of Idle evictions undid.
	Guaranteed, Idle, Lost float64
	// Evictions of idle slices: for memory, for lent memory, of starved ones, and with their device.
	ForMemory, ForLent, Starved, WithDevice int
	// Refused is how many samples of pods were above the slice's memory.
	Refused   int
	Responses []Response
}

// Add adds those of a run that came after.
func (f *Figures) Add(o Figures) {
	f.Lasted, f.InUse, f.Most = f.Lasted+o.Lasted, f.InUse+o.InUse, max(f.Most, o.Most)
	f.Guaranteed, f.Idle, f.Lost = f.Guaranteed+o.Guaranteed, f.Idle+o.Idle, f.Lost+o.Lost
	f.ForMemory, f.ForLent = f.ForMemory+o.ForMemory, f.ForLent+o.ForLent
	f.Starved, f.WithDevice = f.Starved+o.Starved, f.WithDevice+o.WithDevice
	f.Refused += o.Refused
	f.Responses = append(f.Responses, o.Responses...)
}

// placed is a pod on a device.
type placed struct {
	*Pod
	load *Load
	at   int     // step
	due  float64 // seconds of work that are no request yet
}

// device is one in use.
type device struct {
	Device
	pods []placed
	job  *job // in its idle slice
}

type fleet struct {
	Config
	Figures
	random  *rand.Rand
	devices []*device
	waiting []*job // that were evicted
}

// Run has the pods come and go.
func Run(pods []Pod, c Config) Figures {
	f := fleet{Config: c, random: rand.New(rand.NewPCG(c.Seed, 0))}
	arrivals := f.random.Perm(len(pods))
	for step := range c.Steps {
		f.leave(step)
		for _, i := range arrivals {
			if pods[i].From == step {
				f.place(&pods[i], step)
			}
		}
		for _, d := range f.devices {
			f.reclaim(d, step)
		}
		if c.Idle {
			f.fill(step)
		}
		for _, d := range f.devices {
			f.work(d, step)
		}
		f.Lasted += c.Step
		f.InUse += c.Step * float64(len(f.devices))
		f.Most = max(f.Most, len(f.devices))
	}
	return f.Figures
}

// leave takes pods away that have ended, and devices without pods.
func (f *fleet) leave(step int) {
	f.devices = slices.DeleteFunc(f.devices, func(d *device) bool {
		for i := len(d.pods) - 1; i >= 0; i-- {
			if step >= d.pods[i].From+len(d.pods[i].Samples) {
				d.pods = slices.Delete(d.pods, i, i+1)
				d.Loads = slices.Delete(d.Loads, i, i+1)
			}
		}
		if len(d.pods) == 0 && d.job != nil {
			f.evict(d, &f.WithDevice)
		}
		return len(d.pods) == 0
	})
}

// place puts a pod on the device that it leaves the least memory, of those with room, or on one more.
func (f *fleet) place(p *Pod, step int) {
	var best *device
	for _, d := range f.devices {
		core, mem := d.promised()
		if f.Whole || core+p.Slice.Core > api.WholeGPU || mem+p.Slice.Mem > DeviceMem {
			continue
		}
		if best == nil {
			best = d
		} else if _, most := best.promised(); mem > most {
			best = d
		}
	}
	if best == nil {
		best = &device{Device: Device{Limiter: f.Limiter}}
		f.devices = append(f.devices, best)
	}
	quota := float64(p.Slice.Core) / 100
	if f.Whole {
		quota = 1
	}
	load := NewLoad(quota, f.Bursts)
	best.pods = append(best.pods, placed{Pod: p, load: load, at: step})
	best.Loads = append(best.Loads, load)
}

func (d *device) promised() (core api.Percent, mem api.MiB) {
	for _, p := range d.pods {
		core, mem = core+p.Slice.Core, mem+p.Slice.Mem
	}
	return core, mem
}

// ready is the memory that a pod has at once at a step, of its slice.
func (f *fleet) ready(p placed, step int) api.MiB {
	back := int(math.Ceil(lendsAfter / f.Step))
	if !f.Lends || step-p.at < back {
		return p.Slice.Mem
	}
	used := api.MiB(0)
	for s := step - back; s <= step; s++ {
		used = max(used, p.Samples[s-p.From].Mem)
	}
	return min(p.Slice.Mem, used+max(lendMargin, used/10))
}

// free is the memory that nobody has.
func (f *fleet) free(d *device, step int) api.MiB {
	free := DeviceMem - reserve
	for _, p := range d.pods {
		free -= f.ready(p, step)
	}
	if d.job != nil {
		free -= d.job.mem
	}
	return free
}

// reclaim evicts the idle slice from memory that guaranteed pods need. Pods whose use has grown into lent memory
// wait for it.
func (f *fleet) reclaim(d *device, step int) {
	if d.job == nil || f.free(d, step) >= 0 {
		return
	}
	cause := &f.ForMemory
	for _, p := range d.pods {
		if p.at < step && f.ready(p, step) > f.ready(p, step-1) {
			p.load.Held = float64(step)*f.Step + heldFor
			cause = &f.ForLent
		}
	}
	f.evict(d, cause)
}

func (f *fleet) evict(d *device, cause *int) {
	f.Lost += d.job.evict()
	f.waiting = append(f.waiting, d.job)
	d.job = nil
	*cause++
}

// fill has jobs of the queue, which never ends, go to where most is expected to be left. Evicted jobs come
// first.
func (f *fleet) fill(step int) {
	f.waiting = slices.DeleteFunc(f.waiting, func(j *job) bool { return f.start(j, step) })
	for missed := 0; missed < misses; {
		if !f.start(newJob(f.random, f.JobMem), step) {
			missed++
		}
	}
}

// start places a job. It reports whether there is room.
func (f *fleet) start(j *job, step int) bool {
	var best *device
	most := 0.0
	for _, d := range f.devices {
		if d.job != nil || f.free(d, step) < j.mem {
			continue
		}
		if left := d.expected(); best == nil || left > most {
			best, most = d, left
		}
	}
	if best != nil {
		best.job = j
	}
	return best != nil
}

// expected is the percent of the device that guaranteed pods are expected to leave.
func (d *device) expected() float64 {
	p95, mean, variance := 0.0, 0.0, 0.0
	for _, p := range d.pods {
		p95, mean, variance = p95+p.P95, mean+p.Mean, variance+p.Variance
	}
	return 100 - max(p95, mean+5*math.Sqrt(variance))
}

// work runs a device for a step.
func (f *fleet) work(d *device, step int) {
	from := float64(step) * f.Step
	minute := Minute{Bursts: f.Bursts}
	for i := range d.pods {
		p := &d.pods[i]
		s := p.Samples[step-p.From]
		if s.Mem > p.Slice.Mem {
			f.Refused++
		}
		pieces := f.pieces(p, s.Duty)
		minute.Quotas, minute.Pieces = append(minute.Quotas, p.load.Quota), append(minute.Pieces, pieces)
		for _, piece := range pieces {
			p.load.Add(Piece{from + piece.At, piece.Work})
		}
	}
	if d.job != nil {
		minute.Idle = Philly.At(f.random.Float64()) / 100
	}
	if f.Observe != nil {
		f.Observe(minute)
	}
	done := d.Run(from, from+f.Step, minute.Idle)
	f.Responses = append(f.Responses, done.Responses...)
	for _, got := range done.Loads {
		f.Guaranteed += got
	}
	if d.job == nil {
		return
	}
	f.Idle += done.Idle
	d.job.advance(f.Step, minute.Idle, done.Idle)
	switch {
	case d.job.progress >= d.job.length:
		d.job = nil
	case d.job.starved >= starvesAfter:
		f.evict(d, &f.Starved)
	}
}

// pieces are a sample's work, from the sample's begin on. What is less than a request waits for the next sample.
func (f *fleet) pieces(p *placed, duty float64) (pieces []Piece) {
	p.due += duty / 100 * f.Step
	n := int(p.due/f.Request + 1e-9)
	phase := f.random.Float64()
	if n == 0 {
		return nil
	}
	work := float64(n) * f.Request
	p.due -= work
	if f.OnOff {
		return []Piece{{phase * max(0, f.Step-work), work}}
	}
	for i := range n {
		pieces = append(pieces, Piece{(float64(i) + phase) * f.Step / float64(n), f.Request})
	}
	return pieces
}
