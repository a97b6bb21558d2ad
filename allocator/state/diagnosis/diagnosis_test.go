// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"strings"
	"testing"
)

// A sentence names five reasons at most, and its key none that differs from node to node.
func TestHostileTaintOfEachNode(t *testing.T) {
	d := Diagnosis{Refused: 1000, Reasons: Reasons{}}
	for i := range 1000 {
		d.Reasons.Add([]string{fmt.Sprintf("%sdedicated=n%d:NoSchedule", AgainstTaint, i)})
	}
	if len(d.String()) > 1000 || !strings.Contains(d.String(), "and 995 more") || d.Key() != "refused "+AgainstTaint {
		t.Errorf("%q of %d bytes, key of %d", d.String()[:100], len(d.String()), len(d.Key()))
	}
}
