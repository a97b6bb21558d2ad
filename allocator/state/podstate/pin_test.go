// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTo(t *testing.T) {
	const pinned = `{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}`
	for name, tt := range map[string]struct{ affinity, want string }{
		"none": {`null`, `{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + pinned + `]}}}`},
		"preferences stay": {`{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{}}]},"podAffinity":{}}`,
			`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + pinned + `]},"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{}}]},"podAffinity":{}}`},
		"every term": {`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]},{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["x"]}]}]}}}`,
			`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}],"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]},{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["x"]},{"key":"metadata.name","operator":"In","values":["n"]}]}]}}}`},
		"an empty term matches nothing and stays": {`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{}]}}}`,
			`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{}]}}}`},
	} {
		var a *corev1.Affinity
		if err := json.Unmarshal([]byte(tt.affinity), &a); err != nil {
			t.Fatal(err)
		}
		before := a.DeepCopy()
		got, err := json.Marshal(PinTo(a, "n"))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
		if after, _ := json.Marshal(a); before != nil {
			if b, _ := json.Marshal(before); string(b) != string(after) {
				t.Errorf("%s: the pod's own affinity was changed", name)
			}
		}
	}
}
