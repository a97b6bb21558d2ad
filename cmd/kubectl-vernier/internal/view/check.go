// SPDX-License-Identifier: Apache-2.0

package view

// CheckState is the outcome of a check.
type CheckState string

// The outcomes. Unknown is a check that the user may not make.
const (
	CheckOK      CheckState = "ok"
	CheckMissing CheckState = "missing"
	CheckUnknown CheckState = "unknown"
)

// Check is one thing that an installation needs.
type Check struct {
	Name  string     `json:"name"`
	State CheckState `json:"state"`
	// Found is a sentence on what there is.
	Found string `json:"found"`
	// Remedy is what to do; empty where the check is ok.
	Remedy string `json:"remedy,omitempty"`
}

// CheckTable has the remedy behind what was found.
func CheckTable(checks []Check) Table {
	t := Table{header: []string{"CHECK", "STATE", "FOUND"}}
	for _, c := range checks {
		found := c.Found
		if c.Remedy != "" {
			found += ". " + c.Remedy
		}
		t.rows = append(t.rows, []string{c.Name, string(c.State), found})
	}
	return t
}
