"""`Trace`: what every thread did, span by span, to be looked at."""

from __future__ import annotations

import gzip
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from stoker.arguments import explain_arguments, flag, integer
from stoker.metrics import chrome
from stoker.metrics.stages import NvtxRanges, Span, Stages


@explain_arguments({})
class Trace:
    """A recording of what every thread of one or more loaders does: which stage, from when to when, for which step.

        trace = Trace()
        with Loader(dataset, batch_size=64, trace=trace) as loader:
            for batch in loader:
                ...
        trace.write("trace.json")       # open it in https://ui.perfetto.dev or chrome://tracing

    It keeps the latest spans of each thread, about 200 bytes each, so it may stay on for as long as training runs and
    be written at any time; what was dropped is counted, and said in the file. It costs less than a microsecond a span.

    Args:
        max_spans: Spans kept a thread.
        nvtx: Show spans as NVTX ranges too, where a GPU profiler such as Nsight Systems sees them; needs torch with
            CUDA, or `pip install 'stoker[nvtx]'`.

    Raises:
        ImportError: There is neither, and `nvtx` asks for it.
    """

    def __init__(self, *, max_spans: int = 65_536, nvtx: bool = False) -> None:
        self._max_spans = integer(max_spans, "max_spans")
        self._ranges = nvtx_ranges() if flag(nvtx, "nvtx") else None
        self._began_ns = time.perf_counter_ns()
        self._began_unix_ns = time.time_ns()
        self._recorded: list[tuple[str, Stages]] = []

    def stages(self, name: str) -> Stages:
        """Return what a loader of this name tells of its work."""
        stages = Stages(max_spans=self._max_spans, ranges=self._ranges)
        self._recorded.append((name, stages))
        return stages

    @property
    def num_dropped(self) -> int:
        """Spans that are lost because later ones took their place."""
        return sum(stages.num_dropped for _, stages in self._recorded)

    def spans(self) -> dict[str, list[Span]]:
        """Return the spans kept, by thread, each thread's in the order in which they ended.

        Threads of several loaders are told apart by the loader's name: "train: stoker-batch-0".
        """
        is_one = len(self._recorded) == 1
        found: dict[str, list[Span]] = {}
        for name, stages in self._recorded:
            for track in stages.tracks():
                found.setdefault(track.name if is_one else f"{name}: {track.name}", []).extend(track.recorded())
        return found

    def write(self, path: str | Path) -> None:
        """Write everything kept so far as a Chrome trace, which Perfetto reads too; compressed where it ends in .gz.

        Producers, the queue of ready batches and the training loop are tracks of their own; each span carries its
        step, and an arrow leads from a batch's making to the step that used it. Whole or not at all: written aside,
        and renamed.

        Raises:
            OSError: It cannot be written there.
        """
        path = Path(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        recordings = [
            (name, [(track.name, track.recorded(), track.num_dropped) for track in stages.tracks()])
            for name, stages in self._recorded
        ]
        lines = chrome.lines(recordings, began_ns=self._began_ns, began_unix_ns=self._began_unix_ns)
        try:
            with aside.open("wb") as raw:
                if path.suffix == ".gz":
                    # Without a name or a time inside, the same spans are the same bytes.
                    with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0) as packed:
                        packed.writelines(lines)
                else:
                    raw.writelines(lines)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Trace records one process and cannot go to another; make one there")


def nvtx_ranges(load: Callable[[str], object] = importlib.import_module) -> NvtxRanges:
    """Return NVTX's ranges: torch's where it has CUDA, else those of the package `nvtx`.

    Args:
        load: Imports a module by its name.

    Raises:
        ImportError: There is neither; it names the way out.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available():
        return NvtxRanges(cuda.nvtx.range_push, cuda.nvtx.range_pop)
    try:
        nvtx = load("nvtx")
    except ImportError as error:
        raise ImportError(
            "NVTX ranges need torch with CUDA, imported before, or the package nvtx: pip install 'stoker[nvtx]'"
        ) from error
    return NvtxRanges(nvtx.push_range, nvtx.pop_range)  # type: ignore[attr-defined]
