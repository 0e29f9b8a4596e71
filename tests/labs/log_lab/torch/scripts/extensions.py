"""Builds a C++ or CUDA extension when it starts, as fused kernels do."""

import os
import sys
from pathlib import Path

from torch.utils import cpp_extension

SOURCE = """
#include <torch/extension.h>
{header}
int answer() {{ return 42; }}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("answer", &answer); }}
"""


def main() -> None:
    case = sys.argv[1]
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path("extensions").absolute()))
    folder = Path("csrc")
    folder.mkdir(exist_ok=True)
    source = folder / "fused_softmax.cpp"
    source.write_text(
        SOURCE.format(
            header={"cudnn": "#include <cudnn.h>", "cuda": "#include <cuda_runtime_api.h>"}.get(case, "")
        )
    )
    sources = [str(source)]
    if case in {"cuda-file", "setup-cuda"}:
        kernel = folder / "fused_softmax_kernel.cu"
        kernel.write_text("__global__ void scale(float* x) { x[0] *= 2; }\n")
        sources.append(str(kernel))
    if case == "setup-cuda":
        from setuptools import setup

        sys.argv[1:] = ["build_ext", "--inplace"]
        setup(
            name="fused_softmax",
            ext_modules=[cpp_extension.CUDAExtension("fused_softmax", sources)],
            cmdclass={"build_ext": cpp_extension.BuildExtension},
        )
        return
    module = cpp_extension.load(name="fused_softmax", sources=sources, verbose=True)
    print("built", module.answer(), flush=True)


if __name__ == "__main__":
    main()
