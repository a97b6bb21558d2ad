# SPDX-License-Identifier: Apache-2.0
#
# What PyCUDA programs do: a module, a launch with arguments, copies both ways.
import numpy
import pycuda.autoinit  # noqa: F401, makes the context
import pycuda.driver as cuda

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.global .u32 counter;
.visible .entry kernel(.param .u64 data, .param .u32 count) { ret; }
"""
print("total", cuda.mem_get_info()[1] >> 20)
module = cuda.module_from_buffer(PTX)
sent = numpy.arange(1024, dtype=numpy.float32)
data = cuda.mem_alloc(sent.nbytes)
cuda.memcpy_htod(data, sent)
module.get_function("kernel")(data, numpy.int32(1024), block=(128, 1, 1), grid=(8, 1))
cuda.Context.synchronize()
got = numpy.empty_like(sent)
cuda.memcpy_dtoh(got, data)
print("counter", module.get_global("counter")[1], "copied", (sent == got).all())
