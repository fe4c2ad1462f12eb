"""Spans as NVTX ranges, so that a GPU profiler shows them above the kernels."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from stoker.metrics.stages import ProfilerRanges, Subject


class NvtxRanges:
    """Ranges of NVTX, named by stage and what it is for: "gather, step 12".

    Args:
        push: Begins a range of this name on the calling thread.
        pop: Ends the calling thread's last one.
    """

    def __init__(self, push: Callable[[str], object], pop: Callable[[], object]) -> None:
        self._push = push
        self._pop = pop

    def push(self, stage: str, subject: Subject) -> None:
        """Begin a range."""
        _, step, window, chunk = subject
        if chunk >= 0:
            self._push(f"{stage}, chunk {chunk}")
        elif window >= 0:
            self._push(f"{stage}, window {window}")
        else:
            self._push(f"{stage}, step {step}" if step >= 0 else stage)

    def pop(self) -> None:
        """End the last one."""
        self._pop()


def nvtx_ranges(load: Callable[[str], object] = importlib.import_module) -> ProfilerRanges:
    """Return NVTX's ranges: torch's where it has CUDA, else those of the package `nvtx`.

    Args:
        load: Imports a module by its name.

    Raises:
        ImportError: There is neither; it names the way out.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_available():
        return NvtxRanges(cuda.nvtx.range_push, cuda.nvtx.range_pop)
    try:
        nvtx = load("nvtx")
    except ImportError as error:
        raise ImportError(
            "NVTX ranges need torch with CUDA, imported before, or the package nvtx: pip install 'stoker[nvtx]'"
        ) from error
    return NvtxRanges(nvtx.push_range, nvtx.pop_range)  # type: ignore[attr-defined]
