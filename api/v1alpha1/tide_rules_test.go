// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// The API server refuses a tide that cannot be meant, and says which field it is.
func TestTideRules(t *testing.T) {
	c := apiserver.Client(t, apiserver.Start(t, apiserver.Options{}))
	create := func(edit ...string) (*v1alpha1.Tide, error) {
		text := `{apiVersion: vernier.dev/v1alpha1, kind: Tide, metadata: {generateName: t-}, spec: {
windows: [{schedule: "0 23 * * *", duration: 8h, timeZone: Asia/Shanghai}], lend: {core: 80, mem: 70}}}`
		text = strings.NewReplacer(edit...).Replace(text)
		o := &unstructured.Unstructured{}
		must.Do(t, yaml.Unmarshal([]byte(text), &o.Object))
		if err := c.Create(t.Context(), o); err != nil {
			return nil, err
		}
		made := &v1alpha1.Tide{}
		return made, c.Get(t.Context(), client.ObjectKeyFromObject(o), made)
	}
	made := must.Get(create())(t)
	if s := made.Spec; s.Outside != (v1alpha1.TideAmounts{}) || s.Reclaim.Before.Duration != 10*time.Minute || s.Reclaim.Grace.Duration != 30*time.Second || s.Windows[0].Duration.Duration != 8*time.Hour {
		t.Errorf("defaults: %+v", s)
	}
	made = must.Get(create(", timeZone: Asia/Shanghai", "", "spec: {", "spec: {reclaim: {grace: 1m}, outside: {core: 5, mem: 0}, "))(t)
	if s := made.Spec; s.Windows[0].TimeZone != "UTC" || s.Reclaim.Before.Duration != 10*time.Minute || s.Reclaim.Grace.Duration != time.Minute || s.Outside.Core != 5 {
		t.Errorf("defaults beside others: %+v", s)
	}
	for name, tt := range map[string]struct {
		from, to, refusal string
	}{
		"a shortcut":         {"0 23 * * *", "@daily", ""},
		"of several units":   {"8h", "7h30m10s", ""},
		"the longest":        {"8h", "168h", ""},
		"longer than a week": {"8h", "168h1s", "must be from 1m to 168h"},
		"too short":          {"8h", "59s", "must be from 1m to 168h"},
		"a negative one":     {"8h", "-8h", "duration"},
		"milliseconds":       {"8h", "90000ms", "duration"},
		"no duration":        {"8h", `""`, "duration"},
		"a zone in it":       {"0 23 * * *", "TZ=UTC 0 23 * * *", "set timeZone instead"},
		"every":              {"0 23 * * *", "@every 1h", "set timeZone instead"},
		"a long schedule":    {"0 23 * * *", strings.Repeat("0", 101), "schedule"},
		"a long zone":        {"Asia/Shanghai", strings.Repeat("Z", 65), "timeZone"},
		"more than all":      {"core: 80", "core: 101", "core"},
		"less than nothing":  {"core: 80", "core: -1", "core"},
		"more outside":       {"lend: {", "outside: {core: 0, mem: 71}, lend: {", "outside: Invalid value: must not be more than lend"},
		"a long pause":       {"lend: {", "reclaim: {before: 4h1s}, lend: {", "must be from 0s to 4h"},
		"a long grace":       {"lend: {", "reclaim: {grace: 61m}, lend: {", "must be from 0s to 1h"},
		"no windows":         {`{schedule: "0 23 * * *", duration: 8h, timeZone: Asia/Shanghai}`, "", "windows"},
		"many windows":       {"windows: [", "windows: [" + strings.Repeat(`{schedule: "0 23 * * *", duration: 8h}, `, 16), "windows"},
		"a long name":        {"generateName: t-", "name: " + strings.Repeat("n", 64), "at most 63 characters"},
	} {
		_, err := create(tt.from, tt.to)
		if (err == nil) != (tt.refusal == "") || err != nil && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.refusal)) {
			t.Errorf("%s: %v, want %q", name, err, tt.refusal)
		}
	}
}
