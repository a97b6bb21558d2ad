// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

func TestWorkload(t *testing.T) {
	long := strings.Repeat("a", 253)
	for name, tt := range map[string]struct {
		kind, owner, hash, pod, want string
	}{
		"a Deployment's":              {"ReplicaSet", "web-6d4cf", "6d4cf", "web-6d4cf-x", "Deployment/web"},
		"a ReplicaSet's":              {"ReplicaSet", "web-6d4cf", "", "p", "ReplicaSet/web-6d4cf"},
		"a ReplicaSet's, other label": {"ReplicaSet", "web-6d4cf", "7d4cf", "p", "ReplicaSet/web-6d4cf"},
		"a name that is all hash":     {"ReplicaSet", "-6d4cf", "6d4cf", "p", "Pod/p"},
		"a CronJob's":                 {"Job", "night-29417760", "", "p", "Job/night"},
		"a Job's":                     {"Job", "train-17", "", "p", "Job/train-17"},
		"a StatefulSet's":             {"StatefulSet", "db", "", "db-0", "StatefulSet/db"},
		"nobody's":                    {"", "", "", "p", "Pod/p"},
		"nobody's, without a name":    {"", "", "", "", ""},
		"no kind":                     {"a/b", "x", "", "p", "Pod/p"},
		"no name":                     {"Job", "\x1b[2J", "", "p", "Pod/p"},
		"a long kind":                 {long, "x", "", "p", "Pod/p"},
		"a long name":                 {"Job", long, "", "p", "Job/" + long},
	} {
		pod := &metav1.ObjectMeta{Name: tt.pod, Labels: map[string]string{"pod-template-hash": tt.hash}}
		if tt.kind != "" {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "o"}, {Kind: tt.kind, Name: tt.owner, Controller: ptr.To(true)}}
		}
		if got := Workload(pod); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Kubernetes accepts every name, and no two are the same.
func TestObjectName(t *testing.T) {
	if got := ObjectName("Deployment/web", "main"); got != "deployment.web.main" {
		t.Error(got)
	}
	seen := map[string]bool{}
	for _, kind := range []string{"Job", strings.Repeat("K", 63)} {
		for _, name := range []string{"a", "a.b", strings.Repeat("a.", 126) + "a", strings.Repeat("b", 253), strings.Repeat("b", 252) + "c"} {
			for _, container := range []string{"b", strings.Repeat("c", 63), strings.Repeat("c", 62) + "d"} {
				got := ObjectName(kind+"/"+name, container)
				if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 || seen[got] {
					t.Errorf("%s: %v", got, errs)
				}
				seen[got] = true
			}
		}
	}
}
