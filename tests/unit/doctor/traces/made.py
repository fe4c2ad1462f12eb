"""Traces made by hand: a small language for events, and what `stoker trace` says of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.unit.cli.typed import answer_of

MAIN, AUTOGRAD, PID = 100, 101, 100


def traced(*arguments: object) -> dict[str, Any]:
    """Return the answer of `stoker trace --json` about some files."""
    return answer_of("trace", *arguments)


def times_of(answer: dict) -> dict[str, float]:
    """Return all times in microseconds, without those that are zero."""
    return {name: us for name, us in answer["time_us"].items() if us}


class Made:
    """Collects events. Times are microseconds."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self._links = 0

    def add(self, cat, name, start, stop, *, pid=PID, tid=MAIN, **args) -> Made:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": stop - start}
        self.events.append({**event, "args": args} if args else event)
        return self

    def host(self, name, start, stop, *, cat="cpu_op", tid=MAIN, **args) -> Made:
        return self.add(cat, name, start, stop, tid=tid, **args)

    def call(self, name, start, stop, *, tid=MAIN, cat="cuda_runtime", **args) -> Made:
        return self.add(cat, name, start, stop, tid=tid, **args)

    def kernel(self, start, stop, name="gemm", *, stream=7, device=0, cat="kernel", **args) -> Made:
        return self.add(cat, name, start, stop, pid=device, tid=stream, **args)

    def nccl(self, start, stop, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", *, stream=20, **args) -> Made:
        return self.kernel(start, stop, name, stream=stream, **args)

    def copy(self, start, stop, kind="HtoD (Pageable -> Device)", *, stream=7, **args) -> Made:
        return self.kernel(start, stop, f"Memcpy {kind}", stream=stream, cat="gpu_memcpy", **args)

    def launched(self, call, at, start, stop, *, name="gemm", tid=MAIN, cat="kernel", length=1, **args) -> Made:
        """Add a call of the runtime and what it launched."""
        self._links += 1
        self.call(call, at, at + length, tid=tid, correlation=self._links)
        return self.kernel(start, stop, name, cat=cat, correlation=self._links, **args)

    def step(self, number, start, stop) -> Made:
        return self.host(f"ProfilerStep#{number}", start, stop, cat="user_annotation")

    def wait(self, start, stop, name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__") -> Made:
        return self.host(name, start, stop, cat="user_annotation")

    def content(self, **header) -> dict:
        return {"schemaVersion": 1, **header, "traceEvents": self.events}

    def write(self, path: Path, **header) -> Path:
        text = json.dumps(self.content(**header))
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    def traced(self, folder: Path, **header) -> dict:
        return traced(self.write(folder / "trace.json", **header))

    def times(self, folder: Path, **header) -> dict[str, float]:
        return times_of(self.traced(folder, **header))


def rank_of(number: int, world_size: int = 2) -> dict:
    return {"distributedInfo": {"rank": number, "world_size": world_size, "backend": "nccl"}}
