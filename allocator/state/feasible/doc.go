// SPDX-License-Identifier: Apache-2.0

// Package feasible answers one question: would the default scheduler accept this
// node for this pod? It runs the scheduler's own filter plugins, in the default
// profile, over its own cache of nodes and pods, so the answer is the scheduler's
// by construction: taints, node affinity and selectors, unschedulable nodes, CPU,
// memory and extended resources, host ports, inter-pod affinity, topology spread,
// volumes, resource claims, room that is kept for pods that preempt others. And where it
// would not: would it end pods of lower priority to accept it? It is the only package that
// imports k8s.io/kubernetes.
//
// It never chooses among nodes and never writes to the API server.
//
// What the scheduler knows and this package does not: extenders and profiles that
// differ from the default, and what changes between the answer and the binding. A pod that is refused after all is healed
// by the allocator.
//
// The API server must serve resource.k8s.io/v1: Kubernetes 1.34 or later.
package feasible
