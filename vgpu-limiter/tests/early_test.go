// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wantLimited runs calls in some way and wants it to be held to 100 MiB.
func (c *container) wantLimited(cmd *exec.Cmd) {
	c.t.Helper()
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(heldCalls), &stderr
	if out, err := cmd.Output(); err != nil || string(out) != held100 || stderr.Len() != 0 {
		c.t.Errorf("%v\n%s%s", err, out, &stderr)
	}
}

// TestLookupsOfSanitizers: a program that is built with a sanitizer starts under the
// library, and is held to its limit: the sanitizer's runtime looks up what it stands in
// for before anything of it can be called.
func TestLookupsOfSanitizers(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]struct{ flags, env string }{
		"address": {"-fsanitize=address -static-libasan", "ASAN_OPTIONS=detect_leaks=0"},
		// Its runtime refuses to start behind any preloaded library, unless it is told not to.
		"address in a library": {"-fsanitize=address", "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0"},
		"thread":               {"-fsanitize=thread -static-libtsan", ""},
		"thread in a library":  {"-fsanitize=thread", ""},
		"undefined":            {"-fsanitize=undefined", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{0, 100})
			cmd := c.command("libvgpu-test.so", "calls")
			cmd.Path = filepath.Join(c.dir, "calls")
			run(t, compiler(), append(strings.Fields(program.flags), "-g", "-I../../test/simgpu/include", "-o", cmd.Path,
				"programs/calls.c", "-L"+c.sim, "-l:libcuda.so.1", "-pthread")...)
			cmd.Env = append(cmd.Env, program.env)
			fixAddresses(cmd)
			c.wantLimited(cmd)
		})
	}
}

// TestLookupsFromMalloc: the same of a program whose allocator is found by dlsym.
func TestLookupsFromMalloc(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	allocator := filepath.Join(c.dir, "malloc.so")
	run(t, compiler(), "-O1", "-fno-builtin", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", allocator, "malloc/malloc.c")
	cmd := c.command("libvgpu-test.so", "calls")
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+allocator+" "+filepath.Join(c.built.dir, "libvgpu-test.so"))
	c.wantLimited(cmd)
}
