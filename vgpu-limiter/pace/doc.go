// SPDX-License-Identifier: Apache-2.0

// Package pace shares out the time of each GPU among the containers that work on
// it just now. The limiter in each container keeps it to its quota alone;
// what no container can know, the others, is this package's part:
//
//   - Containers that work side by side get turns, one after the other. So in the
//     usual case what one measures on the device holds nothing of the others' work. The
//     next turn is always for the container furthest behind its quota. It begins when the launches of
//     others should be through. The time that containers together were charged
//     beyond the clock is returned to them.
//   - Time that nobody else wants goes to containers whose limits allow bursting,
//     and back to the others as soon as they launch anything.
//
// It reads counters (the tenants' word, bounded by their limits) and writes pace
// files. It never takes from a container's quota. Whatever it says, or if it says
// nothing any more, each container has at least its quota after Validity.
//
// One Loop serves a whole node:
//
//	loop := pace.New()
//	go loop.Run(ctx)
//	...
//	layout.CreatePace(dir+"/pace", len(limits.Devices)) // with limits and counters, before the container
//	c, err := loop.Attach(dir+"/limits", dir+"/counters", dir+"/pace")
//	...
//	c.Detach() // when the container has gone
//
// Attach works for containers that have long been running, too: after a restart
// of the agent, or in a vgpu-run that takes over. Only one loop may write a pace
// file at a time. All methods may be called concurrently.
package pace
