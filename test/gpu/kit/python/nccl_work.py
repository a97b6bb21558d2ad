# SPDX-License-Identifier: Apache-2.0
#
# An all-reduce of 64 MiB over two devices, one process for each.
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(r, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(r)
    dist.init_process_group("nccl", rank=r, world_size=2)
    t = torch.full((16 << 20,), float(r + 1), device="cuda")
    dist.all_reduce(t)
    right = bool((t == 3).all().item())
    torch.cuda.synchronize()
    begun = time.monotonic()
    for _ in range(10):
        dist.all_reduce(t)
    torch.cuda.synchronize()
    took = time.monotonic() - begun
    if r == 0:
        print(json.dumps({"Right": right, "gib_per_s": 10 / 16 / took}))
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(rank, args=(port,), nprocs=2)
