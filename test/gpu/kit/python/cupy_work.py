# SPDX-License-Identifier: Apache-2.0
#
# A product of matrices and a sort; then memory, up to MOST_MIB (first argument).
import json
import sys

import cupy

most = int(sys.argv[1])
a = cupy.arange(1 << 20, dtype=cupy.float64).reshape(1024, 1024) % 97
checksum = float((a @ a).sum()) + float(cupy.sort(a.ravel())[::1000].sum())
total = cupy.cuda.runtime.memGetInfo()[1]
held, error = [], ""
try:
    while (len(held) + 1) * 64 <= most:
        held.append(cupy.ones(64 << 20, dtype=cupy.uint8))
except Exception as e:
    error = type(e).__name__
print(json.dumps({"Total": total, "Held": sum(h.nbytes for h in held), "Error": error, "Checksum": checksum}))
