// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Crashes are the lines in which a part says that it broke down, in Go's own words or in
// those of the libraries that recover. Parts that end are started again, and what
// Vernier does is right over restarts, so that no test needs to see one.
func (s *System) Crashes() (lines []string, err error) {
	for _, p := range s.Parts() {
		log, e := os.ReadFile(p.Log)
		err = errors.Join(err, e)
		for line := range strings.Lines(string(log)) {
			if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "Observed a panic") {
				lines = append(lines, fmt.Sprintf("%s (%s): %s", p.Name, p.Log, strings.TrimSpace(line)))
			}
		}
	}
	return lines, err
}
