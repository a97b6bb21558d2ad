// SPDX-License-Identifier: Apache-2.0

// Package view owns what `kubectl vernier` prints, as tables and documents: the view model
// that it shares with the page, and what pods in manifests would get. The output of -o json and
// -o yaml is a stable format of its own. A change of the ledger does not break anybody's script.
//
// It never talks to a cluster or reads a clock.
package view

import (
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// APIVersion of the printed lists. Within a version fields are added only.
const APIVersion = "view." + v1alpha1.Group + "/v1"

// Kinds of the printed documents.
const (
	KindNodes    = "NodeList"
	KindDevices  = "DeviceList"
	KindSlices   = "SliceList"
	KindWaiting  = "WaitingPodList"
	KindOverview = "Overview"
	// KindExplained is of pods in manifests.
	KindExplained = "ExplainedPodList"
	KindFragments = "FragmentList"
	// KindFits is of pods in manifests, KindReasons of pods in the cluster.
	KindFits    = "FitList"
	KindReasons = "ReasonList"
	KindUses    = "UseList"
	KindClasses = "ClassList"
	KindChecks  = "CheckList"
	KindUsage   = "UsageList"
	KindAdvice  = "AdviceList"
	KindTides   = "TideList"
)

// List is the printed form of one table.
type List[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

// NewList is a list of the given kind.
func NewList[T any](kind string, items []T) List[T] {
	return List[T]{APIVersion: APIVersion, Kind: kind, Items: notNull(items)}
}

// notNull makes an empty list print as [], over which scripts can loop.
func notNull[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

// Overview is the printed form of everything at once.
type Overview struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Nodes      []model.Node       `json:"nodes"`
	Devices    []model.Device     `json:"devices"`
	Slices     []model.Slice      `json:"slices"`
	Waiting    []model.WaitingPod `json:"waiting"`
	// Use is of the one namespace that is shown.
	Use []NamespaceUse `json:"use,omitempty"`
}

// NewOverview is the overview of what is given.
func NewOverview(nodes []model.Node, devices []model.Device, slices []model.Slice, waiting []model.WaitingPod) Overview {
	return Overview{APIVersion, KindOverview, notNull(nodes), notNull(devices), notNull(slices), notNull(waiting), nil}
}
