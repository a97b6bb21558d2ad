// SPDX-License-Identifier: Apache-2.0
//
// serial.c: a device that does one piece of work after the other, in the order in
// which all processes queued them, instead of dividing its time equally.
//
// Invariants:
// - The order holds, for each piece, the position in its client's queue up to
//   which the client's turn goes. Pieces of one client in a row are one turn.
// - What a dead client had queued is left out.
// - All functions want the device's lock held.
#include "state.h"

// sim_serial_add writes down that c has queued work up to position. False if the
// order is full.
bool sim_serial_add(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t position) {
    struct sim_device *d = &s->devices[dev];
    uint32_t client = (uint32_t)(c - s->clients);
    struct sim_turn *last = &d->turns[(d->turns_end - 1) % SIM_TURNS];
    if (d->turns_end != d->turns_begin && last->client == client) {
        last->position = position;
        return true;
    }
    if (d->turns_end - d->turns_begin == SIM_TURNS) return false;
    d->turns[d->turns_end++ % SIM_TURNS] = (struct sim_turn){client, position};
    return true;
}

// sim_serial_left returns how much of a turn is left.
uint64_t sim_serial_left(struct sim_state *s, unsigned dev, uint64_t turn) {
    struct sim_turn *t = &s->devices[dev].turns[turn % SIM_TURNS];
    struct sim_work *w = &s->clients[t->client].work[dev];
    uint64_t end = atomic_load(&w->queued_ns), done = atomic_load(&w->done_ns);
    if (t->position < end) end = t->position;
    return end > done ? end - done : 0;
}

// sim_serial_wait returns how long it takes until c has done position, if that is
// queued.
uint64_t sim_serial_wait(struct sim_state *s, struct sim_client *c, unsigned dev,
                         uint64_t position) {
    struct sim_device *d = &s->devices[dev];
    uint64_t wait = 0, done[SIM_MAX_CLIENTS] = {0};
    for (uint64_t i = d->turns_begin; i != d->turns_end; i++) {
        struct sim_turn *t = &d->turns[i % SIM_TURNS];
        uint64_t left = sim_serial_left(s, dev, i);  // from what is done now
        uint64_t piece = left > done[t->client] ? left - done[t->client] : 0;
        if (t->client == (uint32_t)(c - s->clients) && t->position >= position)
            return wait + piece - (t->position - position < piece ? t->position - position : piece);
        done[t->client] += piece;
        wait += piece;
    }
    return wait;
}
