// SPDX-License-Identifier: Apache-2.0

// Package ranking says on which nodes a pod goes best, and on which devices there.
//
// It owns the picture that the packing engine has of the cluster: which numbers in
// the engine stand for which devices of which node, kept in step with the rooms that
// it is told, and what a pod asks for in the engine's words. What the engine has no
// words for is ranked node by node instead.
//
// It never sees a Kubernetes object and never decides: whoever asks may refuse
// every plan. It is not safe for concurrent use.
package ranking
