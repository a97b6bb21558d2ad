// SPDX-License-Identifier: Apache-2.0

package pace

import "time"

// Beside a process that no limit holds, the driver divides the device's time between it and
// the containers, and nobody gives it turns: a launch takes longer, and its container is
// charged for that. NVML counts by process what each has really had, so a container is
// returned what it was charged beyond that, as far as others have worked.

const (
	// unsure is the percent that NVML's figure, a whole number, may be off.
	unsure = 1
	// SampleInterval is how often a sample is best taken: NVML's own are no more frequent.
	SampleInterval = time.Second
	// missed is how long after a sample the next one no longer goes on where it ended.
	missed = 5 * time.Second
)

// Sample is how busy a GPU has been since the sample before, by NVML's account of each process.
type Sample struct {
	// Used is the percent of the time in which a container's processes worked. A container
	// that is not in here is one of whose processes NVML says nothing.
	Used map[*Container]int
	// Others is the percent in which processes worked that are in none of the containers.
	Others int
}

// NewSample divides what NVML says of each process, by its PID, in percent, among the
// containers that they belong to and others.
func NewSample(busy map[int]int, owners map[int]*Container) Sample {
	s := Sample{Used: map[*Container]int{}}
	for pid, percent := range busy {
		if owner := owners[pid]; owner != nil {
			s.Used[owner] += percent
		} else {
			s.Others += percent
		}
	}
	return s
}

// beside is what a container was charged on a device, and what of it is returned.
type beside struct {
	at, busy  time.Duration // of the last sample: when it came, and what was charged in all
	paid      time.Duration // returned since
	owed, due time.Duration // still to be returned, and how much of it in a SampleInterval
}

// Working are the UUIDs of the GPUs on which containers with a quota have worked of late:
// those of which samples are of use.
func (l *Loop) Working() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var uuids []string
	now := l.now()
	for uuid, there := range l.places() {
		for _, p := range there {
			if core := p.limit().Core; core > 0 && core < 100 && p.container.activity[p.device].LastLaunch > now-worksOn {
				uuids = append(uuids, uuid)
				break
			}
		}
	}
	return uuids
}

// Sampled takes a sample of a GPU. The others' part of the containers' charge is returned to
// them, bit by bit, until the next one is to come.
func (l *Loop) Sampled(uuid string, s Sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, p := range l.places()[uuid] {
		b, busy := &p.state().beside, p.container.activity[p.device].Busy
		over, charged := now-b.at, busy-b.busy+b.paid
		first := b.at == 0 || over > missed
		b.at, b.busy, b.paid = now, busy, 0
		// Of processes in a PID namespace that is not ours NVML may say nothing.
		if used := s.Used[p.container]; used > 0 && !first {
			charged = min(charged, over) // the tenant's word
			others := over * time.Duration(min(max(s.Others, 0), 100)) / 100
			b.owed += min(max(charged-over*time.Duration(used+unsure)/100, 0), others)
		}
		b.due = b.owed
	}
}

// payBack returns the part of what a container is owed that is due after so much time: what
// it gets at once it cannot save.
func (p place) payBack(after time.Duration) {
	b := &p.state().beside
	part := time.Duration(float64(b.due) * float64(after) / float64(SampleInterval))
	if part = min(part, b.owed); part > 0 {
		p.container.pace.Return(p.device, part)
		b.owed -= part
		b.paid += part
	}
}
