// SPDX-License-Identifier: Apache-2.0

// Package feasible answers one question: would the default scheduler accept this
// node for this pod? It runs the scheduler's own filter plugins, in the default
// profile, over its own cache of nodes and pods. So the answer is the scheduler's
// by construction. It knows taints, node affinity and selectors, unschedulable nodes, CPU,
// memory and extended resources, and host ports. It knows inter-pod affinity, topology spread,
// volumes, resource claims and room that is kept for pods that preempt others. Where it
// would not, would it end pods of lower priority to accept it? It is the only package that
// imports k8s.io/kubernetes.
//
// It never chooses among nodes and never writes to the API server.
//
// This package does not know extenders and profiles that
// differ from the default, nor what changes between the answer and the binding. A pod that is refused after all is healed
// by the allocator.
//
// The API server must serve resource.k8s.io/v1: Kubernetes 1.34 or later.
package feasible
