// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// output is how to print.
type output struct {
	format    string
	noHeaders bool
	// withCSV: the command prints one table that spreadsheets may take.
	withCSV bool
}

const formatCSV = "csv"

func (o output) validate() error {
	switch o.format {
	case "", "wide", "json", "yaml":
		return nil
	case formatCSV:
		if o.withCSV {
			return nil
		}
	}
	_, err := o.printer()
	return err
}

func (o output) wide() bool { return o.format == "wide" }

// forPeople tells that tables are printed, not a document.
func (o output) forPeople() bool { return o.format == "" || o.wide() }

// section is one table and what to say when it is empty.
type section struct {
	title string
	table view.Table
	none  string
}

// print writes a document for machines, or its sections for people; what is
// empty is said on errOut, where no pipe takes it for a row.
func (o output) print(out, errOut io.Writer, doc any, sections ...section) error {
	if o.format != "" {
		out, errOut = whole(out), whole(errOut)
	}
	switch o.format {
	case "json":
		text, err := json.MarshalIndent(doc, "", "    ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(raw(out), string(text))
		return err
	case "yaml":
		text, err := yaml.Marshal(doc)
		if err != nil {
			return err
		}
		_, err = raw(out).Write(text)
		return err
	case formatCSV:
		return sections[0].table.CSV(out, !o.noHeaders)
	case "", "wide":
	default:
		return o.printAs(out, doc)
	}
	for i, s := range sections {
		if len(sections) > 1 {
			if i > 0 {
				fmt.Fprintln(out)
			}
			printTitle(out, s.title)
			errOut = out
		}
		if s.table.Empty() {
			fmt.Fprintln(errOut, s.none)
			continue
		}
		if _, err := printTable(out, s.table, !o.noHeaders); err != nil {
			return err
		}
	}
	return nil
}

// printAs prints a document by one of kubectl's printers.
func (o output) printAs(out io.Writer, doc any) error {
	p, err := o.printer()
	if err != nil {
		return err
	}
	of, err := object(doc)
	if err == nil && o.format == "name" {
		of, err = named(of)
	}
	if err != nil {
		return err
	}
	return p.PrintObj(of, out)
}
