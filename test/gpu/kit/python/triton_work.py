# SPDX-License-Identifier: Apache-2.0
#
# A kernel that Triton compiles here. It takes no memory to speak of.
import json

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


n = 1 << 20
x = torch.arange(n, device="cuda", dtype=torch.int32) % 101
y = torch.arange(n, device="cuda", dtype=torch.int32) % 7
out = torch.empty_like(x)
add[(triton.cdiv(n, 1024),)](x, y, out, n, block=1024)
print(json.dumps({"Total": 0, "Held": 0, "Error": "", "Checksum": float(out.sum().item())}))
