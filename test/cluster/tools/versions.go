// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// VersionVariable names the environment variable that chooses another version of the tool
// than its go.mod requires.
func (t Tool) VersionVariable() string { return "VERNIER_" + strings.ToUpper(t.Name) + "_VERSION" }

// chosen is that variable's value; empty is the go.mod's version.
func (t Tool) chosen() string {
	if t.Module == "" {
		return ""
	}
	return os.Getenv(t.VersionVariable())
}

// derive writes a go.mod that requires the chosen version into dir, beside our source. The
// build completes it, and Go's checksum database verifies what that adds.
func (t Tool) derive(ctx context.Context, src, dir string) error {
	var module struct{ GoMod, Error string }
	if err := goJSON(ctx, &module, "mod", "download", "-json", t.Module+"@"+t.chosen()); err != nil {
		return err
	}
	if module.Error != "" {
		return fmt.Errorf("%s=%s: %s", t.VersionVariable(), t.chosen(), module.Error)
	}
	text, err := derived(ctx, t.Module, t.chosen(), module.GoMod)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	source, err := filepath.Glob(filepath.Join(src, t.Name, "*.go"))
	for _, file := range source {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644))
	}
	return err
}

// derived is a go.mod that requires a version of a module, whose own go.mod is a file.
func derived(ctx context.Context, module, version, file string) (string, error) {
	var its struct {
		Go      string
		Replace []struct{ Old, New struct{ Path string } }
	}
	if err := goJSON(ctx, &its, "mod", "edit", "-json", file); err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "module vernier.dev/tools\n\ngo %s\n\nrequire %s %s\n", its.Go, module, version)
	for _, r := range its.Replace {
		// Kubernetes v1.X.Y is released with its staging modules as v0.X.Y.
		if strings.HasPrefix(r.New.Path, "./staging/") {
			fmt.Fprintf(&text, "replace %s => %[1]s v0%s\n", r.Old.Path, strings.TrimPrefix(version, "v1"))
		}
	}
	return text.String(), nil
}

// goJSON decodes what a go command prints; `go mod download` prints its errors so too.
func goJSON(ctx context.Context, into any, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if bad := json.Unmarshal(out, into); bad != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), errors.Join(err, bad), problems.String())
	}
	return nil
}
