"""Operators generated at first use and kept in ext_cache, in the manner of torch.utils.cpp_extension."""
import importlib.util
import os

from torch.utils.file_baton import FileBaton

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ext_cache")
SOURCES = {
    "fused_norm": "import torch\n\ndef run(x, w, b):\n    return torch.layer_norm(x, x.shape[-1:], w, b)\n",
    "fused_gelu": "import torch\n\ndef run(x):\n    return torch.nn.functional.gelu(x, approximate='tanh')\n",
}


def _build(name, target):
    with open(target + ".tmp", "w") as f:
        f.write(SOURCES[name])
    os.replace(target + ".tmp", target)


def load(name):
    folder = os.path.join(ROOT, name)
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, name + ".py")
    if not os.path.exists(target):
        baton = FileBaton(os.path.join(folder, "lock"))
        if baton.try_acquire():
            try:
                _build(name, target)
            finally:
                baton.release()
        else:
            baton.wait()
    spec = importlib.util.spec_from_file_location(name, target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run
