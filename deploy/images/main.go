// SPDX-License-Identifier: Apache-2.0

// Command images packs the OCI images of Vernier's parts from the final stages of
// the Dockerfile, without a container engine: it takes the programs from the
// folder where `make programs` put them, and of the C library what this machine
// has. The same files make the same bytes.
//
// It builds no program, runs nothing, downloads nothing and pushes nothing. It
// understands the few instructions that the final stages need, and refuses others
// rather than pack something else than `docker build` would.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run() error {
	dockerfile := flag.String("dockerfile", "Dockerfile", "whose final stages to pack; its folder is the build context")
	bin := flag.String("bin", "bin", "folder with the programs, "+buildOutput+" of the Dockerfile")
	out := flag.String("out", "bin/images", "folder for one OCI archive per image")
	flag.Parse()
	text, err := os.ReadFile(*dockerfile)
	if err != nil {
		return err
	}
	stages, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", *dockerfile, err)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	from := sources{context: filepath.Dir(*dockerfile), bin: *bin, root: "/"}
	for _, s := range stages {
		if len(s.entrypoint) == 0 {
			continue // others build on it
		}
		img, err := s.image(from)
		if err != nil {
			return fmt.Errorf("image %s: %w", s.name, err)
		}
		name := s.labels[labelTitle]
		file := filepath.Join(*out, name+".tar")
		if err := save(img, name+":"+s.labels[labelVersion], file); err != nil {
			return fmt.Errorf("image %s: %w", s.name, err)
		}
		if err := report(file, img); err != nil {
			return err
		}
	}
	return nil
}

// sources are the folders behind the paths that a stage copies.
type sources struct {
	context string // of a COPY without --from
	bin     string // buildOutput of the build stage
	root    string // everything else of the build stage: the C library
}

// locate is where the file of an instruction is on this machine.
func (s sources) locate(c copied) string {
	switch rest, built := strings.CutPrefix(c.source, buildOutput+"/"); {
	case !c.built:
		return filepath.Join(s.context, c.source)
	case built:
		return filepath.Join(s.bin, rest)
	default:
		return filepath.Join(s.root, c.source)
	}
}
