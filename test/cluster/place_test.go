// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// TestOnOwnThread_LeavesTheProcess: /proc/self, and so /proc/net, shows the main thread's namespaces.
func TestOnOwnThread_LeavesTheProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	namespace := func() string {
		link := must.Get(os.Readlink("/proc/self/ns/net"))(t)
		return link
	}
	before := namespace()
	for range 20 { // the scheduler chooses the thread
		must.Do(t, onOwnThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }))
		if after := namespace(); after != before {
			t.Fatalf("the process is in network namespace %s, and was in %s", after, before)
		}
	}
}
