// SPDX-License-Identifier: Apache-2.0

// Package packer packs pods onto devices so that as much as possible of the GPUs
// can be given out, in microseconds however large the cluster.
//
// It owns the score by which nodes are compared, and what it has learnt of the
// workload from the pods that arrived so far. Its index keeps the best
// node of every class of requests.
//
// It never sees a Kubernetes object, a clock or a random number, and it never
// looks at pods that have not arrived. The same calls give the same answers.
// It is not safe for concurrent use.
package packer
