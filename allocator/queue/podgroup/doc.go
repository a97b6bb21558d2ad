// SPDX-License-Identifier: Apache-2.0

// Package podgroup owns how many pods of a group must start together. It reads what users
// write for others already: the native PodGroup (scheduling.k8s.io), and that of the coscheduling
// plugin (scheduling.x-k8s.io). So it does the one of Volcano (scheduling.volcano.sh). Kueue's pod
// groups are label and annotation only.
//
// It never decides and never writes. The APIs that a cluster serves are discovered while it
// runs: a CRD may come and go.
package podgroup
