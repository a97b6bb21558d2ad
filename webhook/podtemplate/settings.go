// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"flag"
	"fmt"

	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/guard"
)

// Settings are the rules as an operator writes them. Whatever reads pods has the same.
type Settings struct {
	// Dialects of other systems that pods may be written in.
	Dialects dialect.Settings
	// Minimum of a share.
	Minimum demand.Minimum
	// ComputeShares are what namespaces give to containers that ask for memory only, as
	// demand.ParseComputeShares reads them.
	ComputeShares string
	// AllowedHostPaths are the only folders of a node that pods with shares may mount,
	// separated by commas. Empty is all folders that do not open the node.
	AllowedHostPaths string
}

// AddFlags adds a flag for each setting.
func (s *Settings) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&s.AllowedHostPaths, "allowed-host-paths", "", "the only folders of a node that pods with shares may mount, separated by commas; "+
		"empty is all folders that do not open the node")
	flags.StringVar(&s.ComputeShares, "compute-shares", "", "compute of containers that ask for memory only, by namespace: NAMESPACE=PERCENT or NAMESPACE=required, "+
		"separated by commas; * is each namespace that is not named")
	s.Dialects.AddFlags(flags)
	s.Minimum.AddFlags(flags)
}

// Rules are what the settings say of pods. The error names the flag.
func (s *Settings) Rules() (rules Rules, err error) {
	if rules.Dialects, err = s.Dialects.Set(); err != nil {
		return rules, err
	}
	if rules.AllowedHostPaths, err = guard.AllowedHostPaths(s.AllowedHostPaths); err != nil {
		return rules, fmt.Errorf("--allowed-host-paths: %w", err)
	}
	if rules.ComputeShares, err = demand.ParseComputeShares(s.ComputeShares, s.Minimum); err != nil {
		return rules, fmt.Errorf("--compute-shares: %w", err)
	}
	rules.Minimum = s.Minimum
	return rules, s.Minimum.Validate()
}
