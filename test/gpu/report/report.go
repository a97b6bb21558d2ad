// SPDX-License-Identifier: Apache-2.0

// Package report owns the rows by which a check of a machine with a GPU says what held: a
// line each for people who read along, and a JSON file that is complete after every row, so
// that an abort loses no result.
//
// It runs no check.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Verdict is how a row ended.
type Verdict string

const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Skipped Verdict = "skipped" // it can't be checked on this machine
)

// Row is one check and its result.
type Row struct {
	Name    string         `json:"name"`
	Promise string         `json:"promise"` // what is true if it passed
	Verdict Verdict        `json:"verdict"`
	Why     string         `json:"why,omitempty"` // of failed and skipped
	Figures map[string]any `json:"figures,omitempty"`
	Seconds float64        `json:"seconds"`
}

// Set keeps a figure for the report.
func (r *Row) Set(name string, value any) {
	if r.Figures == nil {
		r.Figures = map[string]any{}
	}
	if f, ok := value.(float64); ok {
		value = float64(int64(f*100+0.5)) / 100
	}
	r.Figures[name] = value
}

// String is the row of the table that people read while it runs: why, or the short figures.
func (r *Row) String() string {
	detail := r.Why
	if detail == "" {
		var figures []string
		for name, value := range r.Figures {
			if text := fmt.Sprint(value); len(text) < 60 {
				figures = append(figures, name+"="+text)
			}
		}
		slices.Sort(figures)
		detail = strings.Join(figures, " ")
	}
	detail = strings.Join(strings.Fields(detail), " ")
	return fmt.Sprintf("%-7s  %-22s %5.1fs  %s", r.Verdict, r.Name, r.Seconds, detail)
}

// Report is the JSON file. What it says of the machine is for the check to choose.
type Report[M any] struct {
	Begun     time.Time `json:"begun"`
	Simulated bool      `json:"simulated"`
	Machine   M         `json:"machine"`
	Rows      []*Row    `json:"rows"`
}

// New is a report that begins now.
func New[M any](simulated bool) *Report[M] {
	return &Report[M]{Begun: time.Now().UTC().Truncate(time.Second), Simulated: simulated}
}

// Add prints a row and writes the report with it, in place of the file that is there.
func (r *Report[M]) Add(file string, row *Row) error {
	r.Rows = append(r.Rows, row)
	fmt.Println(row)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// End prints how many rows ended how, and returns the exit code: 1 if any failed.
func (r *Report[M]) End(file string) int {
	count := map[Verdict]int{}
	for _, row := range r.Rows {
		count[row.Verdict]++
	}
	fmt.Printf("%d passed, %d failed, %d skipped; report: %s\n", count[Passed], count[Failed], count[Skipped], file)
	return min(count[Failed], 1)
}
