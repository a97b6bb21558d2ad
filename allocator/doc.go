// SPDX-License-Identifier: Apache-2.0

// Package allocator owns one replica: its rooms, which hang together nowhere else (see
// docs/architecture.md), and the one worker that decides. It has the parts of a look at a pod or a gang
// that concern several rooms.
//
// It decides which node and which devices a pod gets, and makes two writes. The
// grant goes into the node's SliceLedger, by compare-and-swap. Then one patch goes on the
// pod: placement, node pin, gate off. It also takes slices out of ledgers again.
//
// It writes nothing of a ledger's status but whether the node agent is reachable. It never
// binds a pod, and never touches a pod that has another gate than ours left.
//
// One worker decides. Two replicas keep their caches warm and one leads; nothing
// relies on there being one leader only. A grant is fenced by the ledger's
// resourceVersion and the API server's sum rules, the patch by the pod's.
// A crash between the two writes leaves a gated pod that holds slices:
// the next leader finishes it.
//
// Pods of a gang (packages gang and podgroup say which they are) are placed together or not at
// all. Over several ledgers that is three steps: hold, commit, ungate; gang.go says
// what each leaves behind when it fails.
//
// A pod's slices are taken back when
//   - the node says that the pod's containers are gone for good (status.released),
//   - the pod was deleted before it was bound: it never reached a node,
//   - the pod was placed on another node than this ledger's,
//   - they were held for longer than their hold lasts,
//   - the gang that the pod belongs to does not fit, or is not whole any more,
//   - the scheduler has refused the pod there for ten minutes; a pod with a
//     controller is deleted after half a minute, as the first case.
package allocator
