# SPDX-License-Identifier: Apache-2.0
#
# Takes GPU memory in pieces of 64 MiB until there is no more, and prints what the
# device seemed to have, what was to be had, and how it ended.
import json

import torch

_, total = torch.cuda.mem_get_info()
held, error = [], ""
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1))
except Exception as e:
    error = type(e).__name__
print(json.dumps({
    "Total": total, "Held": sum(t.numel() for t in held),
    "Reserved": torch.cuda.memory_reserved(), "Error": error,
}))
