// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
)

// What differs is a metric, and is said once until it changes.
func TestHalfEnabledIsSaidOnce(t *testing.T) {
	set := must.Get(dialect.Settings{Dialects: "gpu-manager"}.Set())(t)
	w := &Watcher{Dialects: set}
	var lines []string
	ctx := log.IntoContext(context.Background(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	for _, step := range []struct {
		condition      string
		unsent, unread float64
		says           string
	}{
		{"n in ['tencent.com/vcuda-core']", 1, 0, `"names"=["tencent.com/vcuda-memory"]`},
		{"n in ['tencent.com/vcuda-core']", 1, 0, ""},
		{`n in ["tencent.com/vcuda-core", "tencent.com/vcuda-memory", "nvidia.com/gpu.shared"]`, 0, 1, `"names"=["nvidia.com/gpu.shared"]`},
		{"n in ['tencent.com/vcuda-core', 'tencent.com/vcuda-memory']", 0, 0, ""},
		{"n.startsWith('vernier.dev/')", 2, 0, `"names"=["tencent.com/vcuda-core" "tencent.com/vcuda-memory"]`},
	} {
		lines = nil
		w.compare(ctx, []string{step.condition})
		unsent, unread := value(t, lacksCondition), value(t, lacksFlag)
		if unsent != step.unsent || unread != step.unread {
			t.Errorf("%s: %v names lack a condition, %v the flag", step.condition, unsent, unread)
		}
		if said := slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, step.says) }); said != (step.says != "") || len(lines) > 1 {
			t.Errorf("%s: said %q", step.condition, lines)
		}
	}
	// Without conditions all pods come.
	w.compare(ctx, nil)
	if value(t, lacksCondition) != 0 {
		t.Error("a dialect is taken for half switched on where every pod comes")
	}
}

func value(t *testing.T, lacks string) float64 {
	t.Helper()
	var m dto.Metric
	must.Do(t, halfEnabled.WithLabelValues(lacks).Write(&m))
	return m.GetGauge().GetValue()
}
