// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"vernier.dev/vernier/test/gpu/report"
)

// rows are all checks, in the order in which they run: what is worth most goes first.
var rows = []*row{
	{Row: report.Row{Name: "driver", Promise: "CUDA and NVML show the same devices, and one can be used"}, most: 60 * time.Second, check: driverFacts},
	{Row: report.Row{Name: "launches", Promise: "every kind of launch of a PTX module works within a share as without, with the right results"}, most: 40 * time.Second, check: launches("kernels.ptx")},
	{Row: report.Row{Name: "memory-paths", Promise: "each way to memory leads to the limit, is refused past it, and gives all back"}, most: 60 * time.Second, check: memoryPaths},
	{Row: report.Row{Name: "memory-views", Promise: "CUDA and NVML show the slice as the device, and no others' processes"}, most: 20 * time.Second, check: views},
	{Row: report.Row{Name: "memory-by-driver", Promise: "the driver counts no more of a program at its limit than the limit"}, most: 30 * time.Second, check: driverCount},
	{Row: report.Row{Name: "memory-processes", Promise: "the processes of one share hold no more than it together"}, most: 30 * time.Second, check: manyProcesses},
	{Row: report.Row{Name: "memory-killed", Promise: "what a killed process held is available to the share's next request"}, most: 40 * time.Second, check: retake},
	{Row: report.Row{Name: "quota", Promise: "a load alone gets its quota: 10, 30 and 60 percent of its native throughput"}, most: 60 * time.Second, check: quotas},
	{Row: report.Row{Name: "quota-30-beside-60", Promise: "two shares side by side get 30 and 60 percent"}, most: 40 * time.Second, check: beside},
	{Row: report.Row{Name: "idle-beside-60", Promise: "an idle slice gets what a share of 60 percent leaves, and takes nothing of it"}, most: 60 * time.Second, check: idleBeside},
	{Row: report.Row{Name: "quota-kinds", Promise: "streams, graphs, cooperative and library launches are held to 30 percent"}, most: 90 * time.Second, check: kindsLimited},
	{Row: report.Row{Name: "cost", Promise: "what the limiter adds to a call, measured"}, most: 60 * time.Second, check: costs},
	{Row: report.Row{Name: "pytorch-memory", Promise: "PyTorch sees its slice as the device, and its own out-of-memory error past it"}, most: 60 * time.Second, check: torchMemory},
	{Row: report.Row{Name: "pytorch-training", Promise: "training at 100 percent runs as natively, at 30 percent at 30, and learns the same"}, most: 120 * time.Second, check: torchTraining},
	{Row: report.Row{Name: "pytorch-30-beside-60", Promise: "two trainings side by side get 30 and 60 percent"}, most: 60 * time.Second, check: torchBeside},
	{Row: report.Row{Name: "pytorch-inference", Promise: "inference at 100 percent runs as natively, at 30 percent at 30"}, most: 100 * time.Second, check: torchInference},
	{Row: report.Row{Name: "long-beside-short", Promise: "kernels of 50 ms and of 200 µs get 30 and 60 percent side by side"}, most: 60 * time.Second, check: longBesideShort},
	{Row: report.Row{Name: "without-limiter", Promise: "how the driver shares a device between two programs, measured"}, most: 30 * time.Second, check: unlimited},
	{Row: report.Row{Name: "memory-after-kill", Promise: "how long the driver takes to free a killed program's memory, measured"}, most: 40 * time.Second, check: freedAfterKill},
	{Row: report.Row{Name: "fat-binary", Promise: "as launches, with the PTX in a fat binary"}, most: 40 * time.Second, check: launches("kernels.fatbin")},
	{Row: report.Row{Name: "nvidia-smi", Promise: "the node agent sees the devices that nvidia-smi shows"}, most: 20 * time.Second, check: goCheck("TestNvidiaSMI")},
	{Row: report.Row{Name: "inventory", Promise: "the node agent's inventory has every device's memory, UUID and device node"}, most: 20 * time.Second, check: goCheck("TestInventory")},
	{Row: report.Row{Name: "cdi", Promise: "the CDI spec names every device node and library, and all of them exist"}, most: 20 * time.Second, check: goCheck("TestCDI")},
	{Row: report.Row{Name: "activity", Promise: "the node agent reads how busy multiprocessors, memory, PCIe and NVLink are, where the driver says"}, most: 30 * time.Second, check: goCheck("TestActivity")},
	{Row: report.Row{Name: "driver-limits", Promise: "memory limits by cgroup are there or not, as the driver's branch says"}, most: 20 * time.Second, check: goCheck("TestMemoryLimits")},
	{Row: report.Row{Name: "nvidia-smi-limited", Promise: "nvidia-smi within a share shows the share"}, most: 20 * time.Second, check: smiLimited},
	{Row: report.Row{Name: "devices-hidden", Promise: "a device that wasn't given is not seen"}, most: 20 * time.Second, check: hidden},
	{Row: report.Row{Name: "peers", Promise: "devices copy to each other, and each is charged for what is on it"}, most: 30 * time.Second, check: peerCopies},
	{Row: report.Row{Name: "nccl", Promise: "NCCL's all-reduce over two devices works within shares, with the right result"}, most: 60 * time.Second, check: nccl},
	{Row: report.Row{Name: "mps", Promise: "MPS holds its clients to a part of the multiprocessors and of memory, in the compute mode as it is"}, most: 40 * time.Second, check: mps},
	{Row: report.Row{Name: "cupy", Promise: "CuPy computes the same within a share, and is refused memory past it"}, most: 40 * time.Second, check: framework("cupy")},
	{Row: report.Row{Name: "jax", Promise: "JAX computes the same within a share, and is refused memory past it"}, most: 60 * time.Second, check: framework("jax")},
	{Row: report.Row{Name: "triton", Promise: "a Triton kernel computes the same within a share"}, most: 60 * time.Second, check: framework("triton")},
	{Row: report.Row{Name: "nvcc", Promise: "a program that nvcc compiles computes the same within a share, and is refused memory past it"}, most: 60 * time.Second, check: nvcc},
	{Row: report.Row{Name: "untouched", Promise: "compute mode and MIG mode are as they were"}, most: 20 * time.Second, check: untouched},
}
