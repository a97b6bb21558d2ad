// SPDX-License-Identifier: Apache-2.0

// Package backfill owns the look ahead: which room the head of the line waits for, when the
// pods that are there now have ended, and which pods may use that room until then.
//
// It is pure: time is a parameter, and no ledger is changed. Its answers order pods. The
// placement of a pod is checked against the ledger all the same.
package backfill
