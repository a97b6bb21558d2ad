// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// SourceDir finds this package's folder, with its go.mod files, from the working
// directory or from the running program: both are normally inside the checkout.
func SourceDir() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			src := filepath.Join(dir, "test", "cluster", "tools")
			if _, err := os.Stat(filepath.Join(src, Kubernetes.Name, "go.mod")); err == nil {
				return src, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("test/cluster/tools is not above the working directory: run this inside a checkout of Vernier")
}

// CacheDir is where tools are kept: $VERNIER_CACHE, or ~/.cache/vernier.
func CacheDir() (string, error) {
	if dir := os.Getenv("VERNIER_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for built tools: %w: set VERNIER_CACHE", err)
	}
	return filepath.Join(base, "vernier"), nil
}

var goVersion = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("go is needed to build the cluster's programs: %w: install Go and put it in PATH", err)
	}
	return strings.Join(strings.Fields(string(out)), " "), nil
})

// version is the tool's module version as its go.mod requires it, or the chosen one.
func (t Tool) version(src string) (string, error) {
	if t.Module == "" {
		return "src", nil
	}
	if chosen := t.chosen(); chosen != "" {
		return chosen, nil
	}
	file := filepath.Join(src, t.Name, "go.mod")
	mod, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(t.Module) + `\s+(v\S+)`).FindSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("%s does not require %s", file, t.Module)
	}
	return string(m[1]), nil
}

// ldflags has the version filled in.
func (t Tool) ldflags(version string) string {
	minor := ""
	if parts := strings.Split(version, "."); len(parts) > 1 {
		minor = parts[1]
	}
	return strings.NewReplacer("VERSION", version, "MINOR", minor).Replace(t.LDFlags)
}

// folder names the tool's place in the cache after everything that decides what
// its binaries are: the files of its folder (go.mod and go.sum, our source), or the chosen
// version in place of the first two; the flags and the compiler.
func (t Tool) folder(src string) (string, error) {
	version, err := t.version(src)
	if err != nil {
		return "", err
	}
	gov, err := goVersion()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, gov, t.CGO, t.Output, t.Links, t.Tags, t.ldflags(version), t.Packages)
	if t.Manifests != nil {
		fmt.Fprintln(h, "manifests", t.Manifests)
	}
	if err := hashFiles(h, filepath.Join(src, t.Name), t.chosen() != ""); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s-%s-%s", t.Name, version, hex.EncodeToString(h.Sum(nil))[:12]), nil
}

// hashFiles hashes the files below a folder, all or our source alone.
func hashFiles(w io.Writer, root string, source bool) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || source && filepath.Ext(path) != ".go" {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(w, "%s %d\n%s", rel, len(data), data)
		return err
	})
}
