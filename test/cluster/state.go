// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vernier.dev/vernier/test/cluster/machine"
)

// The machine has one cluster at a time. These say which, wherever its Dir is.
const (
	recordDir = "/run/vernier-cluster"
	stateFile = recordDir + "/state.json"
	lockFile  = recordDir + "/lock"
	// prefix marks the control groups of a cluster; there are no other names of
	// ours on the machine: namespaces live and die with their processes.
	prefix = "vernier-"
	// systemGroup holds every process that the cluster starts, in control groups
	// version 2; each node's containers have "vernier-" and the node's name.
	systemGroup = prefix + "cluster"
)

// state is the record by which another process, or a later one, finds a cluster
// and removes it. It is on disk before anything in it is on the machine, but for
// processes, which their control group tells as well.
type state struct {
	// Boot identifies the kernel's run: process numbers mean nothing in another.
	Boot string `json:"boot"`
	// Kept is set on a cluster that shall outlive the process that started it.
	Kept   bool         `json:"kept"`
	Dir    string       `json:"dir"`
	LogDir string       `json:"logDir"`
	Nodes  []NodeConfig `json:"nodes"`
	// Address is where the API server is reached from outside, host and port.
	Address string `json:"address"`
	// Created are folders outside Dir, the first made first.
	Created []string `json:"created"`
	// Controllers of control groups version 2 that were handed down.
	Controllers []string  `json:"controllers"`
	Places      []*Place  `json:"places"`
	Processes   []*record `json:"processes"`
}

// record is a process as it was started, so that it can be started again.
type record struct {
	Command Command         `json:"command"`
	Process machine.Process `json:"process"`
}

func loadState() (*state, error) {
	data, err := os.ReadFile(stateFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &state{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("%s: %w: remove it, and the folder that it names", stateFile, err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if s.Boot != boot { // nothing of it runs any more
		s.Kept = false
	}
	return s, nil
}

func (s *state) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	// The file is whole or the old one: a kill in the middle must not lose it.
	tmp := stateFile + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, stateFile)
}

// makeDir makes a folder outside Dir that has to be there, and records what it
// made, before it makes it.
func (s *state) makeDir(path string) error {
	var missing []string
	for dir := path; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		missing = append([]string{dir}, missing...)
	}
	if len(missing) == 0 {
		return nil
	}
	s.Created = append(s.Created, missing...)
	if err := s.save(); err != nil {
		return err
	}
	return os.MkdirAll(path, 0o755)
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
