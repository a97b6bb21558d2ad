// SPDX-License-Identifier: Apache-2.0

// Package docs owns the finding of commands in the documentation: every block of them
// in every page, what a page says about who runs it, and those within sentences.
//
// A block is run as it stands, on a real cluster, unless the line before it says
//
//	<!-- run by FILE TestName -->      something else does
//	<!-- not run: why -->              nobody does
package docs

import (
	"bufio"
	"regexp"
	"slices"
	"strings"
)

// Block is a fenced block of commands.
type Block struct {
	// Page is relative to the repository, Line is that of the fence.
	Page string
	Line int
	// Text is without the indentation of the fence.
	Text string
	// Session has what is printed too, after commands that follow a prompt.
	Session bool
	// RunBy is a file, and a test in it. NotRun is why nobody runs it.
	RunBy, NotRun string
}

// shells are the languages of commands.
var shells = []string{"sh", "bash", "shell", "zsh", "console"}

var (
	fence = regexp.MustCompile("^( *)```(\\w*)$")
	mark  = regexp.MustCompile(`^ *<!-- (?:run by (.+)|not run: (.+)) -->$`)
)

// Commands are all blocks of commands below the repository's root. A block of no
// language counts where it has a prompt.
func Commands(root string) (all []Block, err error) {
	err = pages(root, func(page, text string) { all = append(all, commands(page, text)...) })
	return all, err
}

func commands(page, text string) (all []Block) {
	lines := bufio.NewScanner(strings.NewReader(text))
	var before []string
	for n := 1; lines.Scan(); n++ {
		opened := fence.FindStringSubmatch(lines.Text())
		if opened == nil {
			before = mark.FindStringSubmatch(lines.Text())
			continue
		}
		b := Block{Page: page, Line: n}
		if before != nil {
			b.RunBy, b.NotRun = before[1], before[2]
		}
		for n++; lines.Scan() && lines.Text() != opened[1]+"```"; n++ {
			b.Text += strings.TrimPrefix(lines.Text(), opened[1]) + "\n"
		}
		before = nil
		b.Session = opened[2] == "console" || opened[2] == "" && strings.HasPrefix(b.Text, "$ ")
		if b.Session || slices.Contains(shells, opened[2]) {
			all = append(all, b)
		}
	}
	return all
}

// Script is what a reader types.
func (b Block) Script() string {
	if !b.Session {
		return b.Text
	}
	var script strings.Builder
	for line := range strings.Lines(b.Text) {
		if typed, is := strings.CutPrefix(line, "$ "); is {
			script.WriteString(typed)
		}
	}
	return script.String()
}

// Printed are the lines that a session shows in full.
func (b Block) Printed() (all []string) {
	for line := range strings.Lines(b.Text) {
		if b.Session && !strings.HasPrefix(line, "$ ") && !strings.Contains(line, "…") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}
