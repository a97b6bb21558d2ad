# SPDX-License-Identifier: Apache-2.0
#
# Says the version of a module (first argument), or why it can't use the GPU.
import importlib
import json
import sys

found = {"Missing": "", "Version": ""}
try:
    module = importlib.import_module(sys.argv[1])
    found["Version"] = module.__version__
    if sys.argv[1] in ("torch", "triton"):
        import torch

        torch.zeros(1).cuda()
    elif sys.argv[1] == "cupy":
        module.zeros(1).sum().item()
    elif sys.argv[1] == "jax" and module.devices()[0].platform not in ("gpu", "cuda"):
        found["Missing"] = "it uses " + module.devices()[0].platform
except Exception as e:
    found["Missing"] = f"{type(e).__name__}: {e}"[:300]
print(json.dumps(found))
