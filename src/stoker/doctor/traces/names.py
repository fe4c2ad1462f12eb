"""What an event is, told by its category and its name: every profiler and version has its own words.

Source:
    Categories: libkineto, `ActivityType.h`, in its versions of 2021 ("Kernel", "Runtime", "Operator") to 2026
    ("kernel", "cuda_runtime", "xpu_driver", "privateuse1_runtime", "mtia_ccp_events"). Names of collectives: NCCL and
    RCCL ("ncclDevKernel_..."), DeepEP ("deep_ep::internode::dispatch"), NVSHMEM, MORI, torch's symmetric memory.
"""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag


class EventKind(IntEnum):
    """What an event is."""

    IGNORED = 0
    HOST_OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    PYTHON = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    COLLECTIVE = 8
    UNKNOWN = 9
    LOOP = 10


class Is(IntFlag):
    """What a name says about an event of a given kind."""

    NOTHING = 0
    DATA_WAIT = 1
    COLLATE = 2
    SYNC = 4
    COPY_CALL = 8
    PAGEABLE = 16
    TO_HOST = 32
    STEP = 64
    LAUNCH_CALL = 128


HOST_KINDS = (EventKind.HOST_OP, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON, EventKind.LOOP)
DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET, EventKind.COLLECTIVE)

_CATEGORIES = {
    "cpu_op": EventKind.HOST_OP,
    "operator": EventKind.HOST_OP,
    "hpu_op": EventKind.HOST_OP,
    "user_annotation": EventKind.ANNOTATION,
    "python_function": EventKind.PYTHON,
    "pythonfunction": EventKind.PYTHON,
    "runtime": EventKind.RUNTIME,
    "driver": EventKind.RUNTIME,
    "hip_api": EventKind.RUNTIME,
    "loop": EventKind.LOOP,  # of a trace that Stoker wrote
    "kernel": EventKind.KERNEL,
    "concurrent_kernel": EventKind.KERNEL,
    "mtia_ccp_events": EventKind.KERNEL,
    "memcpy": EventKind.MEMCPY,
    "gpu_memcpy": EventKind.MEMCPY,
    "memset": EventKind.MEMSET,
    "gpu_memset": EventKind.MEMSET,
}
# cuda_runtime, xpu_driver, mtia_runtime, privateuse1_runtime, and those of back ends to come.
_RUNTIME = re.compile(r"\w+_(runtime|driver)")

FLOW_CATEGORIES = {"ac2g", "async", "async_gpu", "async_cpu_to_gpu", "cpu_to_cuda"}
"""Arrows from a call to what it launched; other arrows (forward to backward) are of no use here."""

# What a process is where events have no category: torch's profiler of before Kineto, and Ascend's.
_PROCESSES = {
    "cuda functions": EventKind.KERNEL,
    "cpu functions": EventKind.HOST_OP,
    "ascend hardware": EventKind.KERNEL,
    "communication": EventKind.COLLECTIVE,
    "hccl": EventKind.COLLECTIVE,
    "cann": EventKind.RUNTIME,
    "python": EventKind.HOST_OP,
}

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")

_COLLECTIVE = re.compile(
    r"""
      (?<![a-z])(nccl|rccl|oneccl|xccl|hccl|mccl|cncl|eccl|gloo|ucc|msccl|mscclpp)(?![a-z]*::detail::test)
    | ^(void\ )?hcom_ | nvshmem | rocshmem | ishmem
    | deep_?ep(::|_) (?!layout)
    | \b(intra|inter)node(_ll)?:: | \blow_latency_(dispatch|combine) | \bhybrid_ep\b
    | \bmori:: | (?<![a-z])ep_?(dispatch|combine) | a2a_?(dispatch|combine|prepare) | moe_?(a2a|comm|all_?to_?all)
    | all_?reduce | all_?gather | reduce_?scatter | all_?to_?all(?!_?merge) | all2all
    | cross_device_reduce | symm_?mem | multimem_ | one_?shot_(all|reduce) | two_?shot_(all|reduce)
    """,
    re.IGNORECASE | re.VERBOSE,
)

# torch's own iterators name themselves, as annotation, operator or Python function.
_DATA_WAIT = re.compile(
    r"""
      enumerate\((DataLoader|IterDataPipe|MapDataPipe|DataPipe)\)
    | _(SingleProcess|MultiProcessing)DataLoaderIter
    | DataLoader\w*\.__next__
    | torch/utils/data/dataloader\.py\(\d+\):\ (__next__|_next_data|_get_data|_try_get_data)
    | \bstoker[ ./:\w]*?[ ./:_](wait|__next__)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What people, Lightning and TorchRec call their own ranges around it.
_DATA_ANNOTATION = re.compile(
    r"""
      \bdata[ _-]?(load(ing|er)?|wait(ing)?|fetch(ing)?|time|next|iter)(?![a-z])
    | dataloader_next | \b(train|val|test|predict)_next\b | \bnext\(\s*\w*(data|loader|iter|batch)\w*\s*\)
    | \b(next|load|fetch|get_next|wait_for|wait)[ _-](data|input)?(batch|data|input)s?(?![a-z])
      (?!.*\b(to|copy)_(gpu|device|cuda))
    """,
    re.IGNORECASE | re.VERBOSE,
)
# TorchRec waits under this name for a copy on another stream, not for data.
_NOT_DATA = re.compile(r"##\s*wait_for_batch|dist\b|all2all|Awaitable", re.IGNORECASE)
_COLLATE = re.compile(r"collat(e|ion|ing|or)(?![a-z])|collate_fn", re.IGNORECASE)

_SYNC_CALL = re.compile(
    r"synchroni[sz]e|urQueueFinish|urEventWait|Memcpy(WithStream|(DtoH|HtoD|DtoD)?(_v2)?)$", re.IGNORECASE
)
_SYNC_OP = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")
_SYNC_PYTHON = re.compile(r"built-in method (item|synchronize|is_nonzero|_cuda_synchronize)|: synchronize$")
_COPY_CALL = re.compile(r"memcpy", re.IGNORECASE)
_LAUNCH_CALL = re.compile(r"launch|memcpy|memset|enqueue|runFunction|submit|Execute", re.IGNORECASE)

_PAGEABLE = re.compile(r"\(Pageable -> Device\)")
_TO_HOST = re.compile(r"DtoH|D2H|Device -> (Pageable|Pinned|Host|Unified)|DeviceToHost|M2H", re.IGNORECASE)
# Marks on a stream, which keep it busy with nothing.
_NO_WORK = re.compile(r"event_?(wait|record)|notify_?(wait|record)|^Context Sync|^Stream (Sync|Wait)", re.IGNORECASE)
_COPY_KERNEL = re.compile(r"^dma_request$|^memcpy|^copy(Host|Device|Buffer)", re.IGNORECASE)


def event_kind(category: str) -> EventKind:
    """Return what events of a category are; without a category it has to be told later, by their process."""
    text = category.strip().lower()
    if not text:
        return EventKind.UNKNOWN
    if text in _CATEGORIES:
        return _CATEGORIES[text]
    return EventKind.RUNTIME if _RUNTIME.fullmatch(text) else EventKind.IGNORED


def kind_of_process(name: str) -> EventKind:
    """Return what the events without a category of a process are, by the process's name."""
    return _PROCESSES.get(name.strip().lower(), EventKind.IGNORED)


def device_kind(name: str, kind: EventKind) -> EventKind:
    """Return what a device's event is, seen its name: kernels that communicate are set apart."""
    if kind not in (EventKind.KERNEL, EventKind.COLLECTIVE):
        return kind
    if _NO_WORK.search(name):
        return EventKind.IGNORED
    if kind is EventKind.KERNEL and _COPY_KERNEL.search(name):
        return EventKind.MEMCPY
    return EventKind.COLLECTIVE if kind is EventKind.COLLECTIVE or _COLLECTIVE.search(name) else kind


def step_number(name: str) -> int | None:
    """Return N of "ProfilerStep#N"."""
    match = _STEP.fullmatch(name.strip())
    return int(match[1]) if match else None


def what_is(name: str, kind: EventKind) -> Is:
    """Return what a name says about an event of a kind."""
    if kind is EventKind.MEMCPY:
        return (Is.PAGEABLE if _PAGEABLE.search(name) else Is.NOTHING) | (
            Is.TO_HOST if _TO_HOST.search(name) else Is.NOTHING
        )
    if kind is EventKind.RUNTIME:
        return (
            (Is.SYNC if _SYNC_CALL.search(name) else Is.NOTHING)
            | (Is.COPY_CALL if _COPY_CALL.search(name) else Is.NOTHING)
            | (Is.LAUNCH_CALL if _LAUNCH_CALL.search(name) else Is.NOTHING)
        )
    if kind is EventKind.LOOP:
        return Is.DATA_WAIT if name == "wait" else Is.NOTHING
    if kind not in HOST_KINDS:
        return Is.NOTHING
    found = Is.NOTHING
    if step_number(name) is not None and kind is not EventKind.PYTHON:
        return Is.STEP
    if _DATA_WAIT.search(name) or (
        kind is EventKind.ANNOTATION and _DATA_ANNOTATION.search(name) and not _NOT_DATA.search(name)
    ):
        found |= Is.DATA_WAIT
    if _COLLATE.search(name):
        found |= Is.COLLATE
    if (_SYNC_OP if kind is EventKind.HOST_OP else _SYNC_PYTHON).search(name):
        found |= Is.SYNC
    return found
