# SPDX-License-Identifier: Apache-2.0
#
# A compiled product of matrices of whole numbers; then memory, up to MOST_MIB (first
# argument), without JAX's taking most of the device at its start.
import json
import os
import sys

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
import ctypes

import jax
import jax.numpy as jnp

most = int(sys.argv[1])
a = (jnp.arange(1 << 18, dtype=jnp.int32).reshape(512, 512) % 13).astype(jnp.float32)
checksum = float(jax.jit(lambda x: (x @ x).astype(jnp.int32) % 1000)(a).sum())
free, total = ctypes.c_size_t(), ctypes.c_size_t()
cuda = ctypes.CDLL("libcuda.so.1")
if cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
    # This thread has no context of JAX's.
    context = ctypes.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
held, error = [], ""
try:
    while (len(held) + 1) * 64 <= most:
        held.append(jnp.ones(64 << 20, dtype=jnp.uint8).block_until_ready())
except Exception as e:
    error = type(e).__name__
print(json.dumps({"Total": total.value, "Held": sum(h.nbytes for h in held), "Error": error, "Checksum": checksum}))
