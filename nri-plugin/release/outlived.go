// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/nri-plugin/attach"
)

// late is how much longer a container may take than it has: the kubelet ends it first, with 2 s more
// than its grace, and the agent learns of a deletion at another time.
const late = 10 * time.Second

// ReasonOrphaned is the reason of the event: a container with slices has outlived its pod.
const ReasonOrphaned = "OrphanedContainer"

// outlived is a pod that is deleted and whose containers run.
type outlived struct {
	// due is when they are ended.
	due time.Time
	// ended are those that have been killed, and that the runtime still shows.
	ended map[string]bool
}

// end ends the containers of a pod that ResourceQuota counts no more: one that is gone, once its own
// grace period is over, and one that is being deleted, once the quota has forgotten it. The kubelet
// waits for the grace with which it began to end the pod, whatever a later deletion says, so a pod
// can be gone from the API server for years while it runs. again is when it is due.
//
// It ends nothing of a pod that it does not see: the API server itself has said that the pod is
// being deleted or is gone, just now where it is gone.
func (r *Releaser) end(pod types.UID, is life, running []attach.Entry) (again time.Duration, err error) {
	if !is.deleted || !r.Table.Synced() {
		return 0, nil
	}
	has := is.counted
	if is.gone {
		for _, e := range running {
			has = max(has, e.Grace)
		}
	}
	due := r.Now().Add(has + late)
	o := r.outlived[pod]
	if o == nil {
		o = &outlived{due: due, ended: map[string]bool{}}
		r.outlived[pod] = o
	}
	// Another deletion can only shorten it.
	if due.Before(o.due) {
		o.due = due
	}
	if left := o.due.Sub(r.Now()); left > 0 {
		return left, nil
	}
	for _, e := range running {
		if o.ended[e.ID] || e.PID == 0 {
			continue
		}
		switch failed := r.Kill(e.PID, e.ID); {
		case failed == nil:
			o.ended[e.ID] = true
			r.killed.Add(1)
			r.Log.Info("ended a container that has outlived its pod", "pod", e.Owner, "uid", pod, "container", e.Name)
			r.Warn(e.Container, ReasonOrphaned, fmt.Sprintf(
				"it is ended: its pod was deleted, ResourceQuota no longer counts it, and the kubelet has not ended it in %s", has+late))
		case !errors.Is(failed, unix.ESRCH): // else it ends just now
			err = errors.Join(err, fmt.Errorf("ending container %s of pod %s, which has outlived its pod: %w", e.Name, e.Owner, failed))
			r.Warn(e.Container, ReasonOrphaned, fmt.Sprintf("it has outlived its pod, and cannot be ended (%v): end it on the node", failed))
		}
	}
	return recheck, err
}

// Ended is how many containers were ended that had outlived their pods.
func (r *Releaser) Ended() int64 { return r.killed.Load() }
