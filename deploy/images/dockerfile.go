// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	// buildStage is where programs come from, and buildOutput where it has them.
	buildStage  = "build"
	buildOutput = "/out"

	labelTitle   = "org.opencontainers.image.title"
	labelVersion = "org.opencontainers.image.version"
)

// stage is an image as the Dockerfile describes it.
type stage struct {
	name       string
	labels     map[string]string
	copies     []copied
	user       string
	entrypoint []string
}

// copied is one file of an image.
type copied struct {
	source string // path in the build stage, or in the build context
	built  bool   // in the build stage
	target string // path in the image, absolute
}

// pinned is a reference to an image of somebody else's.
var pinned = regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`)

// targetArch is what BuildKit puts the architecture of the image for.
const targetArch = "${TARGETARCH}"

// parse returns the stages after the build stage for an architecture, each with what it has
// from the stage that it is made from.
func parse(text, arch string) ([]*stage, error) {
	var stages []*stage
	building := false
	for _, line := range instructions(text) {
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		if word == "FROM" {
			rest = strings.ReplaceAll(rest, targetArch, arch)
			m := regexp.MustCompile(`^(\S+) AS (\S+)$`).FindStringSubmatch(rest)
			if m == nil {
				return nil, fmt.Errorf("FROM %s: write FROM IMAGE AS NAME", rest)
			}
			if building = m[2] == buildStage; building {
				if !pinned.MatchString(m[1]) {
					return nil, fmt.Errorf("FROM %s: a tag can be moved: write IMAGE:TAG@sha256:DIGEST, the digest as docker buildx imagetools inspect says it", rest)
				}
				continue
			}
			s, err := derive(stages, m[1], m[2])
			if err != nil {
				return nil, err
			}
			stages = append(stages, s)
			continue
		}
		if building {
			continue
		}
		if len(stages) == 0 {
			return nil, fmt.Errorf("%s stands before any FROM", word)
		}
		if err := stages[len(stages)-1].apply(word, rest); err != nil {
			return nil, fmt.Errorf("stage %s: %s %s: %w", stages[len(stages)-1].name, word, rest, err)
		}
	}
	if len(stages) == 0 {
		return nil, fmt.Errorf("no stage after %q", buildStage)
	}
	return stages, nil
}

// instructions are the lines without comments, continued ones joined.
func instructions(text string) []string {
	var found []string
	joined := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		more, open := strings.CutSuffix(line, `\`)
		if joined += more; open {
			continue
		}
		found = append(found, joined)
		joined = ""
	}
	return found
}

// derive starts a stage with what its base has.
func derive(stages []*stage, base, name string) (*stage, error) {
	if base == "scratch" {
		return &stage{name: name, labels: map[string]string{}}, nil
	}
	for _, s := range stages {
		if s.name == base {
			return &stage{name: name, labels: maps.Clone(s.labels), copies: slices.Clone(s.copies), user: s.user, entrypoint: s.entrypoint}, nil
		}
	}
	return nil, fmt.Errorf("FROM %s AS %s: images are made from scratch or from a stage above: there is nothing here to download others with", base, name)
}

var label = regexp.MustCompile(`^([a-z0-9.-]+)="([^"]*)"\s*`)

func (s *stage) apply(word, rest string) error {
	switch word {
	case "LABEL":
		for rest != "" {
			m := label.FindStringSubmatch(rest)
			if m == nil {
				return fmt.Errorf(`write NAME="VALUE"`)
			}
			s.labels[m[1]], rest = m[2], rest[len(m[0]):]
		}
	case "USER":
		s.user = rest
	case "ENTRYPOINT":
		if err := json.Unmarshal([]byte(rest), &s.entrypoint); err != nil {
			return fmt.Errorf(`write ["PROGRAM"]: %w`, err)
		}
	case "COPY":
		words := strings.Fields(rest)
		built := words[0] == "--from="+buildStage
		if built {
			words = words[1:]
		}
		if len(words) < 2 || strings.HasPrefix(words[0], "--") || !strings.HasSuffix(words[len(words)-1], "/") {
			return fmt.Errorf("write COPY [--from=%s] FILE... FOLDER/", buildStage)
		}
		folder := words[len(words)-1]
		for _, source := range words[:len(words)-1] {
			s.copies = append(s.copies, copied{source: source, built: built, target: path.Join("/", folder, path.Base(source))})
		}
	default:
		return fmt.Errorf("deploy/images does not know this instruction: put it into the stage %q, or teach it", buildStage)
	}
	return nil
}
