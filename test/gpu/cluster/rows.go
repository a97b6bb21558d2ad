// SPDX-License-Identifier: Apache-2.0

package main

import "vernier.dev/vernier/test/gpu/report"

// row is what the tests of that name in test/e2e show. A test with subtests is a row for each.
type row struct {
	report.Row
	test string
}

// rows are all of them. What ran before a machine is taken away is in the report: the tests
// run in the order of their files, and the longest, start, is in the last.
var rows = []row{
	{report.Row{Name: "inventory", Promise: "the ledger's devices are those of NVML and nvidia-smi"}, "TestCardInventory"},
	{report.Row{Name: "cdi", Promise: "the CDI spec by the driver names device nodes and libraries that exist"}, "TestCardCDI"},
	{report.Row{Name: "share", Promise: "pods see their shares of memory, as one device, and can write nothing that limits them"}, "TestShareOfOneGPU"},
	{report.Row{Name: "in-pods", Promise: "the kit's rows, in pods: memory seen and held, 30 beside 60 percent of the work, an idle slice beside 60, PyTorch"}, "TestCardShares"},
	{report.Row{Name: "past-the-slice", Promise: "allocating past the slice is out of memory"}, "TestAllocatingPastTheSliceFails"},
	{report.Row{Name: "compute", Promise: "a load alone gets its 30 percent and no more"}, "TestComputeShare"},
	{report.Row{Name: "waits", Promise: "a pod that doesn't fit waits, its event says for what, and a release starts it"}, "TestOverflowWaitsAndStartsAfterRelease"},
	{report.Row{Name: "whole", Promise: "100 percent is the whole device, without a limiter"}, "TestExclusive"},
	{report.Row{Name: "no-share", Promise: "a pod without a share sees no device and can open none, whatever it asks NVIDIA's runtime for"}, "TestNoSliceNoGPU"},
	{report.Row{Name: "containers", Promise: "several containers of a pod have shares of their own"}, "TestSeveralContainers"},
	{report.Row{Name: "memory-back", Promise: "after deletion and SIGKILL the driver has the memory back, and then the ledger its room; how long, measured"}, "TestCardMemoryComesBack"},
	{report.Row{Name: "killed-process", Promise: "memory of a killed process is the share's again"}, "TestKilledTenantFreesItsMemory"},
	{report.Row{Name: "nothing-lifts-it", Promise: "nothing that root does inside the container lifts the limit"}, "TestNothingInTheContainerLiftsTheLimit"},
	{report.Row{Name: "audit", Promise: "processes that get around the limiter are counted and reported"}, "TestUnenforcedProcessIsReported"},
	{report.Row{Name: "agent-away", Promise: "shares hold with the node agent killed, and with the next"}, "TestCardAgentAway"},
	{report.Row{Name: "agent-killed", Promise: "without the node agent nothing with a share starts, and what runs goes on"}, "TestAgentKilled"},
	{report.Row{Name: "runtime-restarts", Promise: "pods go on over restarts of kubelet and containerd"}, "TestRuntimeRestarts"},
	{report.Row{Name: "preemption", Promise: "a pod of high priority gets the GPU of one of low priority; how long, measured"}, "TestCardPreemption"},
	{report.Row{Name: "start", Promise: "how long a container with a share takes to start, beside one with the whole device by CDI, measured"}, "TestCardStart"},
	{report.Row{Name: "driver-limits", Promise: "where the driver has memory limits (R615), nothing gets past them"}, "TestDriverLimitBypass"},
	{report.Row{Name: "mps", Promise: "shares in mode mps are held by the MPS server"}, "TestMPS"},
	{report.Row{Name: "views", Promise: "metrics and page show the device that NVML shows"}, "TestCardViews"},
}
