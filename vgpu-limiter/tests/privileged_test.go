// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// TestRunPrivilegedPrograms: a program that has more rights than whoever starts it, by its
// file's owner or capabilities, is held to its limit like any other: its loader ignores
// what the environment says of libraries, but not /etc/ld.so.preload.
func TestRunPrivilegedPrograms(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for name, privilege := range map[string]func(path string) error{
		"owner": func(path string) error { return os.Chmod(path, 0o755|os.ModeSetuid) },
		"capabilities": func(path string) error {
			// Version 2, effective: CAP_DAC_OVERRIDE.
			value := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x02000001), 1<<unix.CAP_DAC_OVERRIDE)
			return unix.Setxattr(path, "security.capability", append(value, make([]byte, 12)...), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{0, 1})
			dir, err := os.MkdirTemp("", "vgpu-privileged-") // that others can reach
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			var mount unix.Statfs_t
			must.Do(t, unix.Statfs(dir, &mount))
			never := must.Get(unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0))(t)
			if mount.Flags&unix.ST_NOSUID != 0 || never != 0 {
				t.Skip("no program gets more rights here: TMPDIR is mounted nosuid, or no_new_privs is set")
			}
			program, begin := filepath.Join(dir, "calls"), filepath.Join(dir, "begin.c")
			const ends = "#include <sys/auxv.h>\n#include <unistd.h>\n" +
				"__attribute__((constructor)) static void begin(void) { if (getauxval(AT_SECURE) != 1) _exit(9); }\n"
			must.Do(t, os.WriteFile(begin, []byte(ends), 0o600))
			run(t, compiler(), "-D_GNU_SOURCE", "-I../../test/simgpu/include", "-o", program, begin, "programs/calls.c",
				"-L"+c.sim, "-l:libcuda.so.1", "-Wl,-rpath,"+c.sim, "-pthread")
			must.Do(t, os.Chmod(dir, 0o755))
			switch err := privilege(program); {
			case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM):
				t.Skipf("files have no capabilities here: %v", err)
			case err != nil:
				t.Fatal(err)
			}
			user := []string{"setpriv", "--reuid", "12345", "--regid", "54321", "--clear-groups", "--"}
			r := c.end(c.vgpuRun(append(append([]string{"--mem-mib", "100", "--"}, user...), program)...))
			if r.code != 0 || r.out != held100 || r.stderr != "" || r.report.Processes != 1 {
				t.Errorf("exit code %d, %d processes\n%s%s", r.code, r.report.Processes, r.out, r.stderr)
			}
		})
	}
}
