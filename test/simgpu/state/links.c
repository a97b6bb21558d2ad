// SPDX-License-Identifier: Apache-2.0
//
// links.c: what the NVLinks of a device lead to.
//
// Invariants:
// - A device has NVLinks where its model has them and they lead to switches or to
//   bridged devices, one of the two. They are divided evenly, in turn.
// - Devices at switches are linked with each other; from Hopper on only where both are
//   of one clique of one fabric.
// - Links that are down have their other ends still, and link nothing.
#include "state.h"

#include <string.h>

// sim_link is a device's index, SIM_SWITCH and a switch's, or SIM_NO_LINK.
int sim_link(const struct sim_state *s, unsigned dev, unsigned link) {
    const struct sim_device *d = &s->devices[dev];
    const struct sim_model *m = sim_model(d->model);
    if (!m || link >= m->nvlinks) return SIM_NO_LINK;
    if (d->place.switches) return SIM_SWITCH + (int)(link % d->place.switches);
    if (!d->place.bridged) return SIM_NO_LINK;
    unsigned nth = link % (unsigned)__builtin_popcount(d->place.bridged), peer = 0;
    for (;; peer++)
        if (d->place.bridged >> peer & 1 && nth-- == 0) return (int)peer;
}

// is_routed reports whether the switches carry what a device sends.
static bool is_routed(const struct sim_device *d) {
    return d->place.switches && !atomic_load(&d->links_down) && (d->place.fabric || sim_model(d->model)->major < 9);
}

bool sim_linked(const struct sim_state *s, unsigned a, unsigned b) {
    const struct sim_device *x = &s->devices[a], *y = &s->devices[b];
    if (a == b || atomic_load(&x->links_down) || atomic_load(&y->links_down)) return false;
    if (x->place.bridged >> b & 1) return true;
    return is_routed(x) && is_routed(y) && x->place.fabric == y->place.fabric && x->place.clique == y->place.clique &&
           memcmp(x->place.cluster, y->place.cluster, sizeof x->place.cluster) == 0;
}

// sim_multicast reports whether the switches can multicast for a device.
bool sim_multicast(const struct sim_state *s, unsigned dev) {
    const struct sim_device *d = &s->devices[dev];
    return is_routed(d) && d->place.fabric;
}
