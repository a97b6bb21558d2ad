// SPDX-License-Identifier: Apache-2.0

// Package placement decides which devices of which node a pod gets. It is the
// pure part of the allocator: amounts in, amounts out.
//
// It turns a podrequest.Request and the GPUClasses into what a pod demands.
//
// It owns the arithmetic of a pod's phases, the search for devices, the order of
// preference among nodes, and the explanation when nothing fits. A pod's init
// containers, sidecars and containers do not all run at the same time.
//
// It never sees a Kubernetes object, a clock, a random number or the network. The
// same input gives the same answer, in any order of nodes.
package placement
