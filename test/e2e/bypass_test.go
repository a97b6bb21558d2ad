// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
)

// Where the driver holds the memory, getting past the limiter gains none: not by the
// environment, not by files, not by a loader of one's own, not by many processes, and not
// in a second container of the pod.
func TestDriverLimitBypass(t *testing.T) {
	if !ledger(t, large).Status.Driver.MemoryLimits {
		t.Skip("the driver has no memory limits here: " + ledger(t, large).Status.Driver.MemoryLimitsReason)
	}
	p := awaitReady(t, create(t, newPod("walled").limit(v1alpha1.ResourceMemMiB, 4096).on(large).
		env("LD_PRELOAD", "").env("CUDA_VISIBLE_DEVICES", "0,1").args("--hold").also(bystander("second"))))
	awaitGuarantee(t, p, "main", v1alpha1.GuaranteeDriver)
	if got := values(t, p, "second"); got["device"] != "" || got["error"] != "1" {
		t.Errorf("Invariant 3: a container without a share beside it sees %v", got)
	}
	for _, script := range []string{
		"cudademo --alloc 4200",
		"env -i /bin/cudademo --alloc 4200",
		system.OwnLoader + " /bin/cudademo --alloc 4200",
		// The container as a whole.
		system.OwnLoader + " /bin/cudademo --alloc 2200 --hold >/tmp/first & until busybox grep -q hold /tmp/first; do busybox usleep 10000; done; " + system.OwnLoader + " /bin/cudademo --alloc 2200; busybox kill -9 $!",
		"busybox mv /usr/local /usr/elsewhere; cudademo --alloc 4200",
	} {
		if said := tryIn(t, p, script); !strings.Contains(said, "CUDA_ERROR_OUT_OF_MEMORY") {
			t.Errorf("%q gives %q", script, said)
		}
	}
	if said := tryIn(t, p, system.OwnLoader+" /bin/cudademo --alloc 3000"); !strings.Contains(said, "ok=1") {
		t.Errorf("within its share: %q", said)
	}
}

// A pod that has a whole GPU gets no other of the node's.
func TestExclusiveBypass(t *testing.T) {
	l := ledger(t, large)
	all := l.Status.Devices
	p := awaitReady(t, create(t, newPod("whole-greedy").limit(v1alpha1.ResourceCore, 100).limit(v1alpha1.ResourceMemPercent, 100).on(large).
		env("CUDA_VISIBLE_DEVICES", all[0].UUID+","+all[1].UUID).args("--hold").also(bystander("second"))))
	awaitGuarantee(t, p, "main", v1alpha1.GuaranteeDevice)
	if got := values(t, p, "main"); got["device"] != "1" {
		t.Errorf("it sees %v, want one device", got)
	}
	if got := values(t, p, "second"); got["device"] != "" || got["error"] != "1" {
		t.Errorf("Invariant 3: a container without a share beside it sees %v", got)
	}
	own := deviceOf(t, p)
	for _, d := range all {
		if d.UUID == own.UUID {
			continue
		}
		node := fmt.Sprintf("/dev/nvidia%d", d.Minor)
		said := tryIn(t, p, fmt.Sprintf("mknod %s c 195 %d; head -c 1 %s 2>&1; unset CUDA_VISIBLE_DEVICES; cudademo", node, d.Minor, node))
		if !strings.Contains(said, "ermitted") && !strings.Contains(said, "No such file") || strings.Contains(said, d.UUID) || !strings.Contains(said, own.UUID) {
			t.Errorf("with the other's node made it sees %q", said)
		}
	}
	// What a runtime would obey.
	for _, key := range []string{v1alpha1.AnnotationCDIPrefix + "mine", v1alpha1.AnnotationNVIDIACDIPrefix + "/container.main"} {
		if text := refused(t, newPod("by-cdi").share(10, 10).annotate(key, v1alpha1.CDIKind+"="+own.UUID)); !strings.Contains(text, key) {
			t.Errorf("%s: %s", key, text)
		}
	}
}
