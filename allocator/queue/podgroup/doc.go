// SPDX-License-Identifier: Apache-2.0

// Package podgroup owns how many pods of a group must start together. It reads what users
// write for others already. That is the native PodGroup (scheduling.k8s.io), where the API server
// serves it. It is the PodGroups of the coscheduling plugin (scheduling.x-k8s.io) and of Volcano
// (scheduling.volcano.sh), where their CRDs are installed. Kueue's pod groups are label and
// annotation only.
//
// It never decides and never writes. The APIs that a cluster serves are discovered while it
// runs: a CRD may come and go.
package podgroup
