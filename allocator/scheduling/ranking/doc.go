// SPDX-License-Identifier: Apache-2.0

// Package ranking says on which nodes a pod goes best, and on which devices there.
//
// It owns the packing engine's view of the cluster: which numbers
// stand for which devices of which node, in step with their room. It
// puts a pod's request into the engine's terms. A request for which the engine has no
// terms is ranked node by node instead.
//
// It never sees a Kubernetes object and never decides: the caller may refuse
// every plan. It is not safe for concurrent use.
package ranking
