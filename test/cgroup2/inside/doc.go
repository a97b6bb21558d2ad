// SPDX-License-Identifier: Apache-2.0

// Package inside owns what runs in the machine that package cgroup2 boots. As root it
// runs on any other whose only control groups are version 2 as well:
// VERNIER_RUNC=$(command -v runc) go test -tags cgroup2 ./test/cgroup2/inside.
package inside
