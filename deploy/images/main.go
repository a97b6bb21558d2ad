// SPDX-License-Identifier: Apache-2.0

// Command images packs the OCI images of Vernier's parts from the final stages of
// the Dockerfile, without a container engine. It takes the programs from the
// folder where `make programs` put them, and of the C library what this machine
// has. The same files make the same bytes.
//
// With several architectures an archive has an image for each, under one name, and a
// pull gets the one for the node.
//
// It builds no program, runs nothing, downloads nothing and pushes nothing. It
// understands the few instructions that the final stages need, and refuses others
// rather than pack something else than `docker build` would.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
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
	bin := flag.String("bin", "bin", "folder with the programs of this machine's architecture, "+buildOutput+" of the Dockerfile; those of others are in its folder BIN/ARCH")
	archs := flag.String("archs", runtime.GOARCH, "architectures of the images, separated by commas: amd64, arm64")
	out := flag.String("out", "bin/images", "folder for one OCI archive per image")
	flag.Parse()
	text, err := os.ReadFile(*dockerfile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	images := map[string][]platformImage{} // by name and tag
	for arch := range strings.SplitSeq(*archs, ",") {
		stages, err := parse(string(text), arch)
		if err != nil {
			return fmt.Errorf("%s: %w", *dockerfile, err)
		}
		from := sourcesOf(arch, filepath.Dir(*dockerfile), *bin)
		for _, s := range stages {
			if len(s.entrypoint) == 0 {
				continue // others build on it
			}
			img, err := s.image(from)
			if err != nil {
				return fmt.Errorf("image %s for %s: %w", s.name, arch, err)
			}
			reference := s.labels[labelTitle] + ":" + s.labels[labelVersion]
			images[reference] = append(images[reference], platformImage{arch, img})
		}
	}
	for _, reference := range slices.Sorted(maps.Keys(images)) {
		name, _, _ := strings.Cut(reference, ":")
		file := filepath.Join(*out, name+".tar")
		if err := save(images[reference], reference, file); err != nil {
			return fmt.Errorf("image %s: %w", reference, err)
		}
		if err := report(file, images[reference]); err != nil {
			return err
		}
	}
	return nil
}

// sources are the folders behind the paths that a stage copies.
type sources struct {
	arch    string
	context string // of a COPY without --from
	bin     string // buildOutput of the build stage
	cross   string // the C library of another architecture; empty for this machine's
}

// crossRoot is where Debian's cross compilers have the C library of another architecture.
var crossRoot = map[string]string{"arm64": "/usr/aarch64-linux-gnu/lib", "amd64": "/usr/x86_64-linux-gnu/lib"}

func sourcesOf(arch, context, bin string) sources {
	s := sources{arch: arch, context: context, bin: bin}
	if arch != runtime.GOARCH {
		s.bin, s.cross = filepath.Join(bin, arch), crossRoot[arch]
	}
	return s
}

// locate is where the file of an instruction is on this machine.
func (s sources) locate(c copied) string {
	switch rest, built := strings.CutPrefix(c.source, buildOutput+"/"); {
	case !c.built:
		return filepath.Join(s.context, c.source)
	case built:
		return filepath.Join(s.bin, rest)
	case s.cross != "" && strings.HasPrefix(c.source, "/lib/"):
		return filepath.Join(s.cross, path.Base(c.source))
	default:
		return c.source
	}
}
