// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/nritest"
)

// How long slices may outlive their pod is the kubelet's word on the container, which is there
// after a restart of the agent too, and an hour at most.
func TestHostileGrace(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0": 0, "3600": time.Hour, "3601": time.Hour, "94608000": time.Hour,
		"9223372036854775807": time.Hour, "": time.Hour, "-1": time.Hour, "soon": time.Hour,
	} {
		n, r := newNode(t), nritest.Start(t)
		first := connect(t, r, n.Plugin)
		pod := podOf("a", share30)
		n.ledger.grant(gpu0, slice30(pod))
		c := containerOf(pod, "main")
		c.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": text}
		if _, err := r.Create(pod, c); err != nil {
			t.Fatal(err)
		}
		if e, _ := n.Table.Get(c.Id); e.Grace != want {
			t.Errorf("%q: %s, want %s", text, e.Grace, want)
		}
		first.disconnect()
		r.Lists([]*api.PodSandbox{pod}, []*api.Container{running(c, v1alpha1.EnvSlice+"="+pod.Uid)})
		connect(t, r, n.Plugin)
		if e, _ := n.Table.Get(c.Id); e.Grace != want {
			t.Errorf("%q: %s after a restart, want %s", text, e.Grace, want)
		}
	}
}
