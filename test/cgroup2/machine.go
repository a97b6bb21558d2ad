// SPDX-License-Identifier: Apache-2.0

package cgroup2

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Command is what the machine runs, as its only program.
type Command struct {
	Argv []string
	Env  []string
	Dir  string
}

// Machine is Debian's kernel and QEMU, unpacked, with the program that is its first.
type Machine struct {
	// Root is the folder that "unpack" prints, Init the built program.
	Root, Init string
	// MemoryMiB of it, an even number; what its programs write is in it.
	MemoryMiB int
}

// handed is the file in the first file system that has the command.
const handed = "command.json"

// Run boots it, runs the command, and writes to out what that prints. An error says that
// the machine did not come as far, or what the command's exit status was.
func (m *Machine) Run(ctx context.Context, c Command, out io.Writer) error {
	dir, err := os.MkdirTemp("", "cgroup2-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	initrd, console := filepath.Join(dir, "initrd"), filepath.Join(dir, "console")
	if err := m.writeInitrd(initrd, c); err != nil {
		return fmt.Errorf("its first file system: %w", err)
	}
	kernels, _ := filepath.Glob(filepath.Join(m.Root, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		return fmt.Errorf("%s has %d kernels, not one; remedy: test/cgroup2/unpack --fresh", m.Root, len(kernels))
	}
	lib := filepath.Join(m.Root, "usr", "lib", "x86_64-linux-gnu") + ":" + filepath.Join(m.Root, "lib", "x86_64-linux-gnu")
	qemu := exec.CommandContext(ctx, filepath.Join(m.Root, "usr", "bin", "qemu-system-x86_64"),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		// Every instruction is translated: slow, and the same wherever it runs.
		"-accel", "tcg,thread=multi", "-smp", "2", "-m", strconv.Itoa(m.MemoryMiB),
		// A CPU and half of the memory on each of two NUMA nodes.
		"-object", "memory-backend-ram,id=near,size="+strconv.Itoa(m.MemoryMiB/2)+"M", "-numa", "node,nodeid=0,cpus=0,memdev=near",
		"-object", "memory-backend-ram,id=far,size="+strconv.Itoa(m.MemoryMiB/2)+"M", "-numa", "node,nodeid=1,cpus=1,memdev=far",
		"-L", filepath.Join(m.Root, "usr", "share", "qemu"), "-L", filepath.Join(m.Root, "usr", "share", "seabios"),
		"-kernel", kernels[0], "-initrd", initrd, "-append", "console=ttyS0 panic=-1 quiet",
		"-fsdev", "local,id=here,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=here,mount_tag=here",
		"-serial", "file:"+console, "-serial", "stdio")
	qemu.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
	said := &tail{to: out}
	var complaint bytes.Buffer
	qemu.Stdout, qemu.Stderr = said, &complaint
	err = qemu.Run()
	if status, found := strings.CutPrefix(said.last(), exitWord); found {
		if status == "0" {
			return nil
		}
		return fmt.Errorf("in the machine: exit status %s", status)
	}
	kernel, _ := os.ReadFile(console)
	return fmt.Errorf("the machine ended before its command: %w\n%s\n%s", errors.Join(err, ctx.Err()), complaint.Bytes(), kernel)
}

// exitWord begins the last line that the first program prints.
const exitWord = "exit-status "

// writeInitrd writes the first program, the kernel's modules and the command.
func (m *Machine) writeInitrd(path string, c Command) error {
	a := &archive{}
	for _, dir := range []string{"dev", "proc", "sys", "here", "own", "merged", "modules"} {
		a.add(dir, modeDir|0o755, nil)
	}
	program, err := os.ReadFile(m.Init)
	if err != nil {
		return err
	}
	a.add("init", modeFile|0o755, program)
	modules, _ := filepath.Glob(filepath.Join(m.Root, "modules", "*.ko"))
	for _, module := range modules {
		text, err := os.ReadFile(module)
		if err != nil {
			return err
		}
		a.add("modules/"+filepath.Base(module), modeFile|0o644, text)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	a.add(handed, modeFile|0o644, text)
	return os.WriteFile(path, a.end(), 0o600)
}

// tail passes on whole lines as they come, and keeps the last one to itself.
type tail struct {
	to   io.Writer
	line []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.line = append(t.line, bytes.ReplaceAll(p, []byte("\r"), nil)...)
	for {
		end := bytes.IndexByte(t.line, '\n')
		if end < 0 || end == len(t.line)-1 && bytes.HasPrefix(t.line, []byte(exitWord)) {
			return len(p), nil
		}
		if _, err := t.to.Write(t.line[:end+1]); err != nil {
			return 0, err
		}
		t.line = t.line[end+1:]
	}
}

func (t *tail) last() string { return strings.TrimSpace(string(t.line)) }
