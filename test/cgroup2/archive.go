// SPDX-License-Identifier: Apache-2.0

package cgroup2

import (
	"bytes"
	"fmt"
)

// archive is a first file system as the kernel unpacks it: cpio in the form "newc".
type archive struct {
	bytes.Buffer
	files int
}

const (
	modeDir  = 0o040000
	modeFile = 0o100000
)

func (a *archive) add(name string, mode int, content []byte) {
	a.files++
	// Inode, mode, owner, group, links, time, size, four numbers of devices, length of
	// the name, checksum.
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.files, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() { a.Write(make([]byte, (4-a.Len()%4)%4)) }

func (a *archive) end() []byte {
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes()
}
