"""The compiled core `farspan._core`, which may be missing, and what this CPU is fast at."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType

import torch

HOW_TO_GET_THE_CORE = (
    "install a C++17 compiler, GCC or Clang, and the Python headers (Debian: apt install g++ python3-dev), "
    "then `make setup` in a checkout, or `pip install --force-reinstall --no-deps` of farspan elsewhere"
)


@functools.cache
def load_core() -> tuple[ModuleType | None, str | None]:
    """`(module, None)` if the C++ core can be used, else `(None, why not)`; never raises."""
    if importlib.util.find_spec("farspan._core") is None:
        return None, "the C++ core was not built when farspan was installed"
    try:
        core = importlib.import_module("farspan._core")
    except ImportError as error:
        return None, f"the C++ core was built but does not load: {error}"
    core.use_torch_pool(*torch_pool())
    return core, None


def torch_pool() -> tuple[int, int]:
    """Addresses of `torch_parallel_for` and `torch_get_num_threads`, which torch exports since 2.10; zeros before."""
    try:
        library = ctypes.CDLL(_torch_library())
        functions = (library.torch_parallel_for, library.torch_get_num_threads)
    except (OSError, AttributeError):
        return 0, 0
    parallel_for, get_num_threads = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return parallel_for, get_num_threads


def _torch_library() -> str:
    if sys.platform == "win32":
        return str(Path(torch.__file__).parent / "lib/torch_cpu.dll")
    # Elsewhere a symbol is also looked for in what a library depends on, so torch's own Python module leads to
    # libtorch_cpu wherever a distribution keeps it.
    return torch._C.__file__


def cpu_name() -> str:
    """The processor's own name, or its architecture where the system does not tell."""
    name = str(_capabilities().get("cpu_name", "")).strip()
    return name or platform.processor() or platform.machine()


def bf16_is_fast() -> bool:
    """Whether this CPU multiplies matrices in bfloat16 by its own instructions.

    Without them PyTorch emulates: training under bf16 autocast was measured 25 times slower than fp32
    on an AVX2-only machine. Unknown counts as slow.
    """
    capabilities = _capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _capabilities() -> dict[str, object]:
    # `torch.cpu.get_capabilities` is younger than the oldest torch we accept.
    query = getattr(torch.cpu, "get_capabilities", None)
    return dict(query()) if query is not None else {}
