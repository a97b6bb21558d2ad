// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/manifest"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
	"vernier.dev/vernier/webhook/slim"
)

// explainer is the command that tells what the webhook would make of manifests. It
// needs no cluster: it is the webhook's own code that it asks.
type explainer struct {
	*command
	files     []string
	recursive bool
	settings  dialect.Settings
}

func (c *command) explainCommand() *cobra.Command {
	e := &explainer{command: c}
	cmd := &cobra.Command{
		Use: "explain -f FILE", Short: "Changes that admission would make to the pods in manifests, without a cluster",
		Long: `What the webhook would make of the pods in manifests, in a namespace labelled
vernier.dev/inject=enabled: what each container asks for on each of its GPUs, and
every warning and refusal. No cluster is asked. Templates are found in any kind.

The exit status is 1 where a pod would be refused.`,
		Example: `  kubectl vernier explain -f pod.yaml
  kubectl vernier explain -f manifests/ --dialects all -o json
  helm template my-chart | kubectl vernier explain -f - --dialects hami`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error { return e.run() },
	}
	e.addFlags(cmd)
	return cmd
}

func (e *explainer) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVarP(&e.files, "filename", "f", nil, "file, folder of *.yaml, *.yml and *.json, or - for standard input; may be repeated")
	flags.BoolVarP(&e.recursive, "recursive", "R", false, "folders below the folders of -f too")
	own := flag.NewFlagSet("", flag.ContinueOnError)
	e.settings.AddFlags(own)
	flags.AddGoFlagSet(own)
	completeWith(cmd, "dialects", append(dialect.Names(), "all")...)
}

func (e *explainer) run() error {
	if err := e.output.validate(); err != nil {
		return err
	}
	dialects, err := e.settings.Set()
	if err != nil {
		return err
	}
	given, err := e.read()
	if err != nil {
		return err
	}
	pods := given.Pods
	ours := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects, Classes: classes.Of(given.Classes...)})
	refused := 0
	var explained []view.ExplainedPod
	warned, misplaced := map[*manifest.Owner]bool{}, map[*manifest.Owner]bool{}
	for _, pod := range pods {
		read, err := ours.Read("", pod.JSON)
		one := view.Explain(pod, read, err)
		if one.Verdict == view.VerdictUntouched && one.Dialect == "" {
			if seen, err := slim.Decode(pod.JSON); err == nil {
				one.Warnings = append(one.Warnings, dialects.Kept(seen)...)
			}
		}
		if one.Dialect == "" {
			one.Hint = view.Hint(e.settings, pod.JSON)
		}
		if read.Dialect != "" && pod.Owner != nil && !warned[pod.Owner] {
			raw, err := pod.Owner.JSON()
			if err != nil {
				return err
			}
			one.ObjectWarnings = dialects.OfObject(read.Dialect, raw)
			warned[pod.Owner] = len(one.ObjectWarnings) > 0
		}
		if pod.Owner != nil && pod.Native && !misplaced[pod.Owner] {
			path := field.NewPath("metadata", "annotations")
			of := field.NewPath(pod.Path).Child("metadata", "annotations")
			one.ObjectWarnings = append(one.ObjectWarnings, podrequest.Misplaced(pod.Owner.Annotations(), path, of)...)
			misplaced[pod.Owner] = true
		}
		if one.Verdict == view.VerdictRefused {
			refused++
		}
		explained = append(explained, one)
	}
	err = e.output.print(e.out, e.errOut, view.NewList(view.KindExplained, explained),
		section{table: view.ExplainedTable(explained), none: "No pods, and nothing that makes pods, in what was given."})
	if err != nil {
		return err
	}
	if e.output.forPeople() {
		e.remarks(explained)
		fmt.Fprintln(whole(e.errOut), "No cluster was asked: what quotas, policies and the namespace's label say is not known. kubectl vernier fit asks.")
	}
	if refused > 0 {
		return fmt.Errorf("%d of %d pods would be refused", refused, len(pods))
	}
	return nil
}

// remarks prints what does not fit into a table.
func (e *explainer) remarks(pods []view.ExplainedPod) {
	line := func(p view.ExplainedPod, what, text string) {
		fmt.Fprintln(whole(e.out), oneLine(p.Name()+": "+what+": "+text))
	}
	for _, p := range pods {
		for _, r := range p.Refusals {
			text := r.Message
			if r.Field != "" {
				text = r.Field + ": " + text
			}
			line(p, "refused", text)
		}
		for _, w := range p.Warnings {
			line(p, "warning", w)
		}
		for _, w := range p.ObjectWarnings {
			fmt.Fprintln(whole(e.out), oneLine(p.Object+": warning: "+w))
		}
		if p.Hint != "" {
			line(p, "hint", p.Hint)
		}
	}
}

func (e *explainer) read() (manifest.Contents, error) {
	var all manifest.Contents
	if len(e.files) == 0 {
		return all, errors.New("say which manifests: -f FILE, -f FOLDER, or -f - for standard input")
	}
	for _, name := range e.files {
		if name == "-" {
			found, err := manifest.Read(e.in)
			if err != nil {
				return all, fmt.Errorf("standard input: %w", err)
			}
			all.Add("", found)
			continue
		}
		files, err := expand(name, e.recursive)
		if err != nil {
			return all, err
		}
		for _, file := range files {
			found, err := readFile(file)
			if err != nil {
				return all, fmt.Errorf("%s: %w", file, err)
			}
			all.Add(file, found)
		}
	}
	return all, nil
}

func readFile(name string) (manifest.Contents, error) {
	f, err := os.Open(name)
	if err != nil {
		return manifest.Contents{}, err
	}
	defer f.Close()
	return manifest.Read(f)
}

// expand lists the manifests of a folder, as kubectl does; a file is itself.
func expand(name string, recursive bool) (files []string, err error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	err = filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && !recursive:
			return fs.SkipDir
		case !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no *.yaml, *.yml or *.json in the folder; -R looks into folders below it", name)
	}
	return files, err
}
