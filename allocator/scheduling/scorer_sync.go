// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"iter"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/allocator/scheduling/ranking"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// wants is all that the pod asks for, devices and host.
func (p *Request) wants() *ranking.Ask {
	cpu, memory := feasible.Asks(p.Pod)
	return &ranking.Ask{Demand: p.Demand, CPU: packer.Milli(cpu), Mem: v1alpha1.MiBFromBytes(uint64(memory))}
}

// survey brings the ranking up to date with what is known now: rooms, hosts, and the
// pods that arrived. What it has learnt is kept nowhere else: a new leader learns
// it from the pods that there are.
func (s *Scheduler) survey() error {
	hosts, err := s.Filters.Changed()
	if err != nil {
		return err
	}
	rooms, pods := s.Cache.Index.Changed(), s.wanted(s.Cache.Arrivals())
	if s.ranking == nil {
		start := s.Clock.Now()
		defer func() {
			s.Log.Info("Took over", "ledgers", len(rooms), "pods", len(pods), "seconds", s.Clock.Since(start).Seconds())
		}()
		s.ranking = ranking.New()
		rooms, hosts, pods = s.Cache.Index.Names(), nil, s.wanted(s.Cache.EverArrived())
		for _, pod := range pods {
			s.ranking.Expect(pod)
		}
	}
	for _, name := range rooms {
		s.show(name)
	}
	for _, name := range hosts {
		s.show(name)
	}
	for _, pod := range pods {
		s.ranking.Learn(pod)
	}
	s.ranking.Reprice()
	return nil
}

// Plans are the plans for what is asked for, the best first, each with the node as it was made
// on. The scheduler's filters are not asked.
func (s *Scheduler) Plans(ask *ranking.Ask) (iter.Seq2[placement.Plan, *placement.Node], error) {
	if err := s.survey(); err != nil {
		return nil, err
	}
	return s.ranking.Plans(ask), nil
}

// show has the ranking see a node as it is.
func (s *Scheduler) show(name string) {
	if room, known := s.Cache.Index.On(name); known {
		s.showRoom(name, s.asSeen(name, room))
	} else {
		s.ranking.Delete(name)
	}
}

func (s *Scheduler) showRoom(name string, room *placement.Node) {
	host := s.Filters.Host(name)
	s.ranking.Set(name, room, ranking.Host{
		CPU: packer.Milli(host.CPU), Cores: packer.Milli(host.Cores), Mem: v1alpha1.MiB(host.Memory >> 20), Aside: host.Shut,
	})
}

func (s *Scheduler) wanted(pods []*corev1.Pod) (asks []*ranking.Ask) {
	for _, pod := range pods {
		if demand, err := placement.DemandOf(podrequest.Of(pod), s.Classes); err == nil && len(demand.Containers) > 0 {
			p := Request{pod, demand}
			asks = append(asks, p.wants())
		}
	}
	return asks
}
