// SPDX-License-Identifier: Apache-2.0

// Package kueue owns the admission check of Kueue's Workloads: the pending ones, and the
// verdicts on them. Kueue admits by sums. The check says whether there are devices for all pods of a
// Workload, and has their room reserved until they come.
//
// Where Kueue is not installed nothing of it runs. The one worker decides (Decide); verdicts are
// written beside it, since Kueue's webhooks have a say in that, and may be slow.
package kueue
