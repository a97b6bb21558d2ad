// SPDX-License-Identifier: Apache-2.0

// Package backfill owns the look ahead. It finds the room that the head of the line waits for, its time,
// and the pods that may use it until then.
//
// It is pure: time is a parameter, and no ledger is changed. Its answers order pods. The
// placement of a pod is checked against the ledger all the same.
package backfill
