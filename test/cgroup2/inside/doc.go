// SPDX-License-Identifier: Apache-2.0

// Package inside owns what runs in the machine that package cgroup2 boots. As root it
// runs on any other with two processors whose only control groups are version 2 as well,
// where VERNIER_RUNC is the path of runc, VERNIER_CONTAINERD the folder of containerd and
// VERNIER_PAUSE the path of a static program that does nothing until it is ended.
package inside
