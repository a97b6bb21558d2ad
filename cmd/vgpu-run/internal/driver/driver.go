// SPDX-License-Identifier: Apache-2.0

// Package driver asks the CUDA driver which devices there are: libcuda.so.1 and
// nothing else, found as the command will find it (LD_LIBRARY_PATH and all).
// The asking is done in a child process, so that vgpu-run itself never holds a
// driver. No memory of the device, and no crash of a driver's, is its own.
package driver

/*
// This names the folder, so that Go's build cache keeps one build for each checkout:
// with -trimpath it has one for all of them, and go vet then looks for the source in
// a checkout that may be gone.
#cgo CFLAGS: -I${SRCDIR}
#cgo LDFLAGS: -ldl
#include "probe.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Device is one device that the driver shows, in the order of CUDA's indices.
type Device struct {
	UUID        string
	MemoryBytes uint64
}

// Devices runs child, whose only work is to call Answer on its descriptor 3, and
// returns what it says. The driver's own output is shown only if it fails.
func Devices(child *exec.Cmd) ([]Device, error) {
	devices, said, err := ask(child)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && said != "" {
		return nil, errors.New(said)
	}
	if err != nil {
		return nil, fmt.Errorf("asking the CUDA driver for its devices: %w %s", err, said)
	}
	return devices, nil
}

func ask(child *exec.Cmd) (devices []Device, said string, err error) {
	answer, theirs, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = answer.Close() }()
	var stderr strings.Builder
	child.Stderr, child.ExtraFiles = &stderr, []*os.File{theirs}
	err = child.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, "", err
	}
	decoding := json.NewDecoder(answer).Decode(&devices)
	if err = child.Wait(); err == nil {
		err = decoding
	}
	return devices, strings.TrimSpace(stderr.String()), err
}

// Answer writes the devices of this process's driver to out.
func Answer(out io.Writer) error {
	var found [C.VGPU_PROBE_DEVICES]C.struct_vgpu_probe_device
	var text [256]C.char
	n := C.vgpu_probe(&found[0], &text[0], C.size_t(len(text)))
	if n < 0 {
		return errors.New(C.GoString(&text[0]))
	}
	devices := []Device{}
	for _, d := range found[:n] {
		var uuid [16]byte
		for i, b := range d.uuid {
			uuid[i] = byte(b)
		}
		devices = append(devices, Device{UUID: layout.FormatUUID(uuid), MemoryBytes: uint64(d.memory)})
	}
	return json.NewEncoder(out).Encode(devices)
}
