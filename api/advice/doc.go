// SPDX-License-Identifier: Apache-2.0

// Package advice owns how much of a GPU a workload is advised to request. It has what is kept of
// the use, and the rule that makes an amount of it.
//
// Everything is bounded, so that a status can hold it, and merges, so that nodes can count apart.
// It never asks the API server anything and reads no clock.
package advice
