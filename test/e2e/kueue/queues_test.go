// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kueue

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
)

// A team borrows what another leaves of a cohort, and gives it back when that other asks. Kueue decides who; the
// devices are given to the one only once the other's pods have gone.
func TestCohort(t *testing.T) {
	placementCheck(t)
	const reclaims = "cohortName: research\n  preemption: {reclaimWithinCohort: Any}"
	queue(t, "borrower", 100, withCheck, reclaims)
	queue(t, "owner", 100, withCheck, reclaims)
	job(t, "borrower", "large", 2, limits(100, 1000))
	awaitRunning(t, "borrower", "large", 2)
	job(t, "owner", "own", 1, limits(100, 1000))
	awaitRunning(t, "owner", "own", 1)
	if w := workloads(t, "borrower")["large"]; is(w, "Admitted") {
		t.Error("what was borrowed was not given back")
	}
	awaitRunning(t, "borrower", "large", 0)
	empty(t, "owner")
	awaitRunning(t, "borrower", "large", 2)
}

// Inside a queue the higher priority of Kueue's own goes first, and who was preempted comes back.
func TestPreemptionInQueue(t *testing.T) {
	placementCheck(t)
	queue(t, "one", 100, withCheck, "preemption: {withinClusterQueue: LowerPriority}")
	apply(t, `
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 1000
`)
	job(t, "one", "low", 1, limits(100, 1000))
	awaitRunning(t, "one", "low", 1)
	job(t, "one", "high", 1, limits(60, 1000), func(j *batchv1.Job) { j.Labels["kueue.x-k8s.io/priority-class"] = "urgent" })
	awaitRunning(t, "one", "high", 1)
	awaitRunning(t, "one", "low", 0)
	empty(t, "one")
}
