"""Loads one of DeepSpeed's operators, which compiles it."""

import sys

import deepspeed.ops.op_builder as builders
from deepspeed.ops.op_builder.builder import installed_cuda_version

name = sys.argv[1]
builder = getattr(builders, name)()
print("compatible:", builder.is_compatible(verbose=True), flush=True)
if "Fused" in name:
    print("nvcc", installed_cuda_version(), flush=True)
builder.load()
