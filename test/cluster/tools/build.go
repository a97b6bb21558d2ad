// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Ensure builds the tools that the cache lacks and returns the folder of each,
// in the given order. It says on progress what it builds and how long that
// takes; with everything in the cache it says nothing. Several processes may call
// it at once: one builds, the others wait for it.
func Ensure(ctx context.Context, progress io.Writer, wanted ...Tool) ([]string, error) {
	if ready := os.Getenv(ReadyVariable); ready != "" {
		return readyDirs(ready, wanted)
	}
	src, err := SourceDir()
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	root := filepath.Join(cache, "tools")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("the cache of built tools: %w: set VERNIER_CACHE to a folder that you may write", err)
	}
	dirs := make([]string, len(wanted))
	for i, t := range wanted {
		folder, err := t.folder(src)
		if err != nil {
			return nil, err
		}
		dirs[i] = filepath.Join(root, folder)
		if err := t.ensure(ctx, progress, src, dirs[i]); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// ReadyVariable names the environment variable with a folder that has each tool built, in
// a folder of its name: on a machine without Go.
const ReadyVariable = "VERNIER_TOOLS"

func readyDirs(ready string, wanted []Tool) (dirs []string, err error) {
	for _, t := range wanted {
		dir := filepath.Join(ready, t.Name)
		if !exists(dir) {
			return nil, fmt.Errorf("%s=%s has no folder %s: unset it to build the cluster's programs", ReadyVariable, ready, t.Name)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (t Tool) ensure(ctx context.Context, progress io.Writer, src, dir string) error {
	if exists(dir) {
		return nil
	}
	unlock, err := lock(ctx, progress, dir+".lock", t.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if exists(dir) { // built by whoever held the lock
		return nil
	}
	// A folder in the cache is complete or absent: it gets its name last.
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+t.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := t.build(ctx, progress, src, tmp); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

func (t Tool) build(ctx context.Context, progress io.Writer, src, out string) error {
	version, err := t.version(src)
	if err != nil {
		return err
	}
	start := time.Now()
	fmt.Fprintf(progress, "building %s %s from its Go module (once; up to %s with an empty build cache)\n", t.Name, version, t.Cold)
	target := out + string(filepath.Separator)
	if t.Output != "" {
		target = filepath.Join(out, t.Output)
	}
	args := []string{"build", "-trimpath", "-tags", t.Tags, "-ldflags", t.ldflags(version), "-o", target}
	cmd := exec.CommandContext(ctx, "go", append(args, t.Packages...)...)
	cmd.Dir = filepath.Join(src, t.Name)
	flags := "-buildvcs=false"
	if t.chosen() != "" {
		cmd.Dir, err = os.MkdirTemp("", "vernier-"+t.Name+"-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(cmd.Dir)
		if err := t.derive(ctx, src, cmd.Dir); err != nil {
			return err
		}
		flags += " -mod=mod"
	}
	cgo := "0"
	if t.CGO {
		cgo = "1"
	}
	// The caller's GOFLAGS must not reach these builds: they would miss the build
	// cache, or not build at all (-mod=vendor).
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS="+flags, "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building %s: %w", t.Name, ctx.Err())
		}
		return fmt.Errorf("building %s %s: %w\n%s%s", t.Name, version, err, tail(text, 30), t.remedy(string(text)))
	}
	for _, name := range t.Links {
		if err := os.Symlink(t.Output, filepath.Join(out, name)); err != nil {
			return err
		}
	}
	for name, m := range t.Manifests {
		list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", m.Module)
		list.Dir, list.Env = cmd.Dir, cmd.Env
		module, err := list.Output()
		if err != nil {
			return fmt.Errorf("finding the manifests of %s: %w", m.Module, err)
		}
		if err := os.CopyFS(filepath.Join(out, "manifests", name), os.DirFS(filepath.Join(strings.TrimSpace(string(module)), m.Folder))); err != nil {
			return err
		}
	}
	fmt.Fprintf(progress, "built %s in %.0f s\n", t.Name, time.Since(start).Seconds())
	return nil
}

// remedy turns the failures that a fresh machine meets into something to do.
func (t Tool) remedy(output string) string {
	switch {
	case strings.Contains(output, "libseccomp") || strings.Contains(output, "pkg-config"):
		return "\nremedy: apt-get install -y libseccomp-dev pkg-config gcc libc6-dev"
	case strings.Contains(output, "no space left"):
		return "\nremedy: free 6 GiB where `go env GOCACHE` and VERNIER_CACHE point"
	case strings.Contains(output, "dial tcp") || strings.Contains(output, "no such host"):
		return "\nremedy: the Go module proxy cannot be reached; see `go env GOPROXY`"
	}
	return ""
}

func tail(text []byte, lines int) string {
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// lock takes an exclusive lock that ends with this process at the latest.
func lock(ctx context.Context, progress io.Writer, path, name string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			fmt.Fprintf(progress, "waiting: another process is building %s\n", name)
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Missing says which of the tools the cache lacks, so that Ensure would build
// them.
func Missing(wanted ...Tool) ([]Tool, error) {
	if ready := os.Getenv(ReadyVariable); ready != "" {
		_, err := readyDirs(ready, wanted)
		return nil, err
	}
	src, err := SourceDir()
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	var missing []Tool
	for _, t := range wanted {
		folder, err := t.folder(src)
		if err != nil {
			return nil, err
		}
		if !exists(filepath.Join(cache, "tools", folder)) {
			missing = append(missing, t)
		}
	}
	return missing, nil
}
