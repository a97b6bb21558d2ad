// SPDX-License-Identifier: Apache-2.0

// Package version owns the version that a program says it is of. The Makefile stamps the
// chart's appVersion into every program; `go install` and `go run` leave what Go knows.
package version

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// stamp is set with -ldflags "-X vernier.dev/vernier/api/version.stamp=0.1.0".
var stamp string

// String is the version: the stamp, else the module's version as Go recorded it, else
// "devel".
func String() string {
	info, _ := debug.ReadBuildInfo()
	return choose(stamp, info)
}

func choose(stamp string, info *debug.BuildInfo) string {
	recorded := ""
	if info != nil && info.Main.Version != "(devel)" {
		recorded = strings.TrimPrefix(info.Main.Version, "v")
	}
	return cmp.Or(stamp, recorded, "devel")
}

// flags are those of package flag or of pflag.
type flags interface {
	Name() string
	BoolFunc(name, usage string, f func(string) error)
}

// AddFlag adds --version, which prints the program's version and exits.
func AddFlag(f flags) {
	f.BoolFunc("version", "print the version and exit", func(string) error {
		fmt.Println(Line(f.Name()))
		os.Exit(0)
		return nil
	})
}

// Line is what a program answers to --version, in the form of cobra's.
func Line(program string) string {
	return filepath.Base(program) + " version " + String()
}
