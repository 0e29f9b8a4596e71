"""Python packages that are missing or do not fit, and native code that does not load or cannot be built."""

from tests.labs.log_lab.torch.case import Case

__all__ = ["BUILD"]

NATIVE = "source {lab}/scripts/native.sh {python}; native "
SITE = "PYTHONPATH=site "
ONE = "torchrun --nproc_per_node 2 --master_port {port} train.py "


def _native(name: str, build: str, module: str, expect: str, why: str, *, also: tuple[str, ...] = ()) -> Case:
    return Case(name, SITE + ONE + module, expect, why, script="imports", setup=NATIVE + build, also=also)


def _pip(
    name: str,
    packages: str,
    module: str,
    expect: str,
    why: str,
    *,
    needs: tuple[str, ...] = ("transformers",),
    also: tuple[str, ...] = (),
) -> Case:
    setup = "{python} -m pip install -q --no-deps --target site " + packages
    return Case(name, SITE + ONE + module, expect, why, script="imports", setup=setup, needs=needs, also=also)


def _import(name: str, files: str, module: str, expect: str, why: str, *, also: tuple[str, ...] = ()) -> Case:
    return Case(
        name,
        SITE + ONE + module,
        expect,
        why,
        script="imports",
        setup=f"mkdir -p site; cd site\n{files}\ncd ..",
        also=also,
    )


MEGATRON_TREE = "mkdir -p megatron/core; touch megatron/__init__.py; echo '__version__ = \"0.5.0\"' > megatron/core/__init__.py"
CIRCULAR = """mkdir -p trainer_lib; echo 'from trainer_lib.model import Model' > trainer_lib/__init__.py
printf 'from trainer_lib.loss import dpo_loss\\n\\n\\nclass Model:\\n    pass\\n' > trainer_lib/model.py
printf 'from trainer_lib.model import Model\\n\\n\\ndef dpo_loss(m: Model):\\n    return 0\\n' > trainer_lib/loss.py"""
EXTENSION = "torchrun --nproc_per_node 2 --master_port {port} train.py "
NO_NVCC = "env -u CUDA_HOME "
HIDE_CUDA = "mount -t tmpfs tmpfs /usr/local/cuda/; mount --bind /dev/null $(command -v nvcc)"

BUILD: tuple[Case, ...] = (
    Case(
        "import-missing",
        ONE + "flash_attn",
        "missing-module",
        "flash_attn is not installed",
        script="imports",
    ),
    Case(
        "import-missing-submodule",
        ONE + "torch.distributed.fsdp2",
        "missing-module",
        "a module that this torch does not have",
        script="imports",
        also=("version-mismatch",),
    ),
    Case(
        "import-name-gone",
        ONE + "torch.distributed:ProcessGroupNCCLX",
        "version-mismatch",
        "an attribute that this torch lacks",
        script="imports",
        also=("missing-module", "rank-died"),
    ),
    _import(
        "import-wrong-tree",
        MEGATRON_TREE,
        "megatron.training",
        "missing-module",
        "PYTHONPATH (as of MEGATRON_LM_PATH) names a tree with megatron/core and without megatron/training",
    ),
    _import(
        "import-circular",
        CIRCULAR,
        "trainer_lib",
        "rank-died",
        "two modules of the program import each other",
        also=("missing-module",),
    ),
    _import(
        "import-shadowed",
        "mkdir -p datasets; touch datasets/__init__.py",
        "datasets:load_dataset",
        "rank-died",
        "a folder datasets/ of the program hides the library",
        also=("missing-module", "version-mismatch"),
    ),
    _import(
        "import-syntax",
        "echo 'def f(x: int | None = None) -> None' > recipe.py",
        "recipe",
        "rank-died",
        "a file of the program has a syntax error",
    ),
    _native(
        "native-cxx11-abi",
        "cxx11-abi",
        "flash_attn",
        "extension-abi-mismatch",
        "an extension built for the other C++ string ABI",
    ),
    _native(
        "native-torch-symbol",
        "torch-symbol",
        "causal_conv1d",
        "extension-abi-mismatch",
        "an extension that asks for a function that this torch lacks",
    ),
    _native(
        "native-libcudart",
        "libcudart",
        "apex",
        "cuda-version-mismatch",
        "an extension linked with CUDA 11's runtime",
        also=("extension-abi-mismatch",),
    ),
    _native(
        "native-libcuda",
        "libcuda",
        "vllm",
        "rank-died",
        "an extension linked with libcuda.so.1, no driver here",
        also=("extension-abi-mismatch", "cuda-version-mismatch"),
    ),
    _native(
        "native-glibc",
        "glibc",
        "grouped_gemm",
        "extension-abi-mismatch",
        "an extension built for glibc 2.38, here 2.36",
    ),
    _native(
        "native-glibcxx",
        "glibcxx",
        "fused_layer_norm",
        "extension-abi-mismatch",
        "an extension built for a newer libstdc++ than the one here",
    ),
    _native(
        "native-numpy1",
        "numpy1",
        "helpers_index",
        "extension-abi-mismatch",
        "an extension built with numpy 1.26 headers",
        also=("version-mismatch",),
    ),
    _pip(
        "transformers-torchvision",
        "torchvision==0.19.1",
        "transformers:PreTrainedModel",
        "extension-abi-mismatch",
        "torchvision for torch 2.4 beside another torch: transformers cannot be imported",
        also=("version-mismatch",),
    ),
    _pip(
        "transformers-llama-torchvision",
        "torchvision==0.19.1",
        "transformers:LlamaForCausalLM",
        "extension-abi-mismatch",
        "the same, a model class is imported",
        also=("version-mismatch",),
    ),
    _pip(
        "transformers-tokenizers-old",
        "tokenizers==0.15.2",
        "transformers:AutoTokenizer",
        "version-mismatch",
        "tokenizers 0.15 beside a newer transformers",
        needs=("transformers",),
    ),
    _pip(
        "transformers-hub-old",
        "huggingface_hub==0.17.3",
        "transformers:AutoModel",
        "version-mismatch",
        "huggingface_hub 0.17 beside a newer transformers",
        also=("missing-module",),
    ),
    _pip(
        "peft-transformers-old",
        "transformers==4.28.1 tokenizers==0.13.3",
        "peft",
        "version-mismatch",
        "peft beside a transformers that is too old for it",
        needs=("peft", "transformers"),
        also=("missing-module",),
    ),
    Case(
        "build-cudnn-header",
        EXTENSION + "cudnn",
        "missing-header",
        "an extension includes cudnn.h, which is not installed",
        script="extensions",
        timeout=300,
    ),
    Case(
        "build-no-cuda-home",
        NO_NVCC + "python train.py setup-cuda",
        "cuda-version-mismatch",
        "a CUDA extension is built without nvcc and CUDA_HOME",
        script="extensions",
        launcher="python",
        nproc=1,
        setup=HIDE_CUDA,
        also=("missing-header", "rank-died"),
        mounts=True,
    ),
    Case(
        "build-cuda-version",
        "CUDA_HOME=/usr/local/cuda python train.py setup-cuda",
        "cuda-version-mismatch",
        "nvcc is of another major CUDA version than torch",
        script="extensions",
        launcher="python",
        nproc=1,
        cuda_build=True,
    ),
    Case(
        "build-no-compiler",
        "CXX=g++-4.8 " + EXTENSION + "plain",
        "rank-died",
        "CXX names a compiler that is not installed",
        script="extensions",
    ),
    Case(
        "build-python-header",
        EXTENSION + "plain",
        "missing-header",
        "Python.h is not installed (python3-dev)",
        script="extensions",
        mounts=True,
        setup="inc=$(python -c 'import sysconfig; print(sysconfig.get_paths()[\"include\"])'); mount -t tmpfs tmpfs $inc",
        timeout=300,
    ),
    Case(
        "compile-no-compiler",
        "CXX=/opt/gcc/bin/g++ torchrun --nproc_per_node 2 --master_port {port} train.py",
        "rank-died",
        "torch.compile without a C++ compiler",
        script="compiled",
    ),
    Case(
        "libcudnn-missing",
        ONE + "torchvision",
        "extension-abi-mismatch",
        "the folder of libcudnn is empty: torch cannot be imported",
        script="imports",
        mounts=True,
        cuda_build=True,
        also=("version-mismatch", "cuda-version-mismatch", "missing-module"),
        setup="mount -t tmpfs tmpfs $(python -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0])')",
    ),
)
