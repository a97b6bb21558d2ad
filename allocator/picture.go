// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/ranking"
	"vernier.dev/vernier/api/v1alpha1"
)

// wants is all that the pod asks for, devices and host.
func (p *ask) wants() *ranking.Ask {
	cpu, memory := feasible.Asks(p.pod)
	return &ranking.Ask{Demand: p.demand, CPU: packer.Milli(cpu), Mem: v1alpha1.MiBFromBytes(uint64(memory))}
}

// survey brings the ranking up to date with what is known now: rooms, hosts, and the
// pods that arrived. What it has learnt is kept nowhere else: a new leader learns
// it from the pods that there are.
func (a *Allocator) survey() error {
	hosts, err := a.Filters.Changed()
	if err != nil {
		return err
	}
	rooms, pods := a.index.Changed(), a.arrived()
	if a.ranking == nil {
		start := a.Clock.Now()
		defer func() {
			a.Log.Info("took over", "ledgers", len(rooms), "pods", len(pods), "seconds", a.Clock.Since(start).Seconds())
		}()
		a.ranking = ranking.New()
		rooms, hosts, pods = a.index.Names(), nil, a.everArrived()
		for _, pod := range pods {
			a.ranking.Expect(pod)
		}
	}
	for _, name := range rooms {
		a.show(name)
	}
	for _, name := range hosts {
		a.show(name)
	}
	for _, pod := range pods {
		a.ranking.Learn(pod)
	}
	a.ranking.Reprice()
	return nil
}

// show has the ranking see a node as it is.
func (a *Allocator) show(name string) {
	if room, known := a.index.On(name); known {
		a.showRoom(name, room)
	} else {
		a.ranking.Delete(name)
	}
}

func (a *Allocator) showRoom(name string, room *placement.Node) {
	host := a.Filters.Host(name)
	a.ranking.Set(name, room, ranking.Host{
		CPU: packer.Milli(host.CPU), Cores: packer.Milli(host.Cores), Mem: v1alpha1.MiB(host.Memory >> 20), Aside: host.Shut,
	})
}

// arrived are the pods that have come since the last call.
func (a *Allocator) arrived() []*ranking.Ask {
	a.mu.Lock()
	defer a.mu.Unlock()
	pods := a.arrivals
	a.arrivals = nil
	return wanted(pods)
}

// everArrived are all pods that are known to have come, oldest first.
func (a *Allocator) everArrived() []*ranking.Ask {
	a.mu.Lock()
	defer a.mu.Unlock()
	var pods []*corev1.Pod
	for _, pod := range podstate.OldestFirst(a.pods) {
		if podstate.Arrived(pod) {
			pods = append(pods, pod)
		}
	}
	return wanted(pods)
}

func wanted(pods []*corev1.Pod) (asks []*ranking.Ask) {
	for _, pod := range pods {
		if demand, _, err := podrequest.Of(pod); err == nil && len(demand.Containers) > 0 {
			p := ask{pod, demand}
			asks = append(asks, p.wants())
		}
	}
	return asks
}
