// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vernier.dev/vernier/test/must"
)

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a mount namespace")
	}
}

// users are the ways to run something: as this user and, if that is root, as one
// that no file knows of.
func users(t *testing.T) map[string]*syscall.Credential {
	t.Helper()
	all := map[string]*syscall.Credential{"this user": nil}
	if os.Geteuid() == 0 {
		all["uid 12345"] = &syscall.Credential{Uid: 12345, Gid: 54321}
	}
	return all
}

// asUser makes cmd run as that user, with copies of what it can't reach otherwise.
func (c *container) asUser(cmd *exec.Cmd, user *syscall.Credential) {
	t := c.t
	t.Helper()
	if user == nil {
		return
	}
	home := must.Get(os.MkdirTemp("", "vgpu-user-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	copied := filepath.Join(home, "copy")
	run(t, "cp", "-a", c.dir, copied)
	run(t, "cp", "-a", c.built.dir, filepath.Join(home, "bin"))
	run(t, "chmod", "-R", "a+rwX", home)
	move := strings.NewReplacer(c.built.dir, filepath.Join(home, "bin"), c.dir, copied)
	cmd.Path, cmd.Dir = move.Replace(cmd.Path), copied
	for _, list := range [][]string{cmd.Args, cmd.Env} {
		for i := range list {
			list[i] = move.Replace(list[i])
		}
	}
	must.Do(t, os.Chown(copied, int(user.Uid), int(user.Gid)))
	cmd.SysProcAttr.Credential = user
}

// TestRunOnBareRoot: the library writes to its counters and to nothing else, and
// doesn't depend on /proc.
func TestRunOnBareRoot(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := newContainer(t, share{0, 1})
	// The simulated driver's state has to stay writable.
	const script = `
mount --bind "$PLACE" "$PLACE"
mount -o remount,bind,ro /
! touch /var/vernier-was-here 2>/dev/null
mount -t tmpfs -o ro none /proc
exec "$CALLS"
`
	cmd := c.vgpuRun("--mem-mib", "100", "--", "sh", "-euc", script)
	cmd.Env = append(cmd.Env, "PLACE="+c.dir, "CALLS="+filepath.Join(c.built.dir, "calls"))
	if r := c.end(cmd); r.code != 0 || r.out != held100 || r.stderr != "" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.stderr)
	}
}

// TestRunSharesTime: one vgpu-run tells all how time is shared out, in files that
// their commands can't write; when it is killed, another one does.
func TestRunSharesTime(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	// valid prints until when the word about device 0 holds.
	const script = `
valid() { od -An -tu8 -j72 -N8 /usr/local/vernier/pace; }
! sh -c 'echo >/usr/local/vernier/pace' 2>/dev/null
until [ $(valid) != 0 ]; do :; done
echo told
read line
then=$(valid)
until [ $(valid) -gt $((then + 1000000000)) ]; do :; done
echo told again
`
	start := func() (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
		cmd := c.vgpuRun("--core", "30", "--", "sh", "-euc", script)
		in, lines := pipes(t, cmd)
		must.Do(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if !lines.Scan() || lines.Text() != "told" {
			t.Fatalf("said %q, want told", lines.Text())
		}
		return cmd, in, lines
	}
	leader, blocked, _ := start()
	follower, in, lines := start()
	must.Do(t, leader.Process.Kill())
	_ = leader.Wait()
	must.Get(io.WriteString(in, "go on\n"))(t)
	if !lines.Scan() || lines.Text() != "told again" {
		t.Errorf("said %q, want told again", lines.Text())
	}
	must.Report(t, follower.Wait())
	_ = blocked.Close() // ends the command whose vgpu-run is dead
}
