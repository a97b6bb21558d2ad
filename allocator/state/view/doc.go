// SPDX-License-Identifier: Apache-2.0

// Package view owns the view model that the page and `kubectl vernier` show. It turns
// ledgers, pods, events and agents' metrics into nodes, devices, slices, waiting pods and
// uses. The plugin prints these types with -o json: within a version of its format fields
// are added only.
//
// It never talks to a cluster or reads a clock, and adds up nothing in
// another way than the rules of the SliceLedger CRD.
package view

import "vernier.dev/vernier/api/v1alpha1"

// Amount is what is granted of a total.
type Amount[T v1alpha1.Percent | v1alpha1.MiB] struct {
	Granted T `json:"granted"`
	Total   T `json:"total"`
}

// Core is compute in percent of one GPU, Memory in MiB.
type (
	Core   = Amount[v1alpha1.Percent]
	Memory = Amount[v1alpha1.MiB]
)

// Free is what is left.
func (a Amount[T]) Free() T { return max(a.Total-a.Granted, 0) }

// Percent of the total that is granted.
func (a Amount[T]) Percent() float64 {
	if a.Total == 0 {
		return 0
	}
	return 100 * float64(a.Granted) / float64(a.Total)
}
