// SPDX-License-Identifier: Apache-2.0

//go:build race

package allocator

// The race detector makes a soak's steps several times as long.
func init() { soakPart = 10 }
