"""What an event is, told by its category and its name: every profiler, framework and user has words of their own.

`NAMES` is the one table; `NAMES.extended(data=["my_feed"])` is one that knows more.

Source:
    Categories: libkineto, `ActivityType.h`, in its versions of 2021 ("Kernel", "Runtime", "Operator") to 2026
    ("kernel", "cuda_runtime", "xpu_driver", "privateuse1_runtime", "mtia_ccp_events"). Names of collectives: NCCL and
    RCCL ("ncclDevKernel_..."), DeepEP ("deep_ep::internode::dispatch"), NVSHMEM, MORI, torch's symmetric memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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

FLOW_CATEGORIES = {"ac2g", "async", "async_gpu", "async_cpu_to_gpu", "cpu_to_cuda", "hosttodevice"}
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
ONE_DEVICE = {"ascend hardware", "communication", "hccl", "cuda functions"}
"""Profilers that give computation and communication of one device as two processes."""

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")

# Names in the file, as they are.
_DATA = r"""
      enumerate\((DataLoader|IterDataPipe|MapDataPipe|DataPipe)\)
    | _(SingleProcess|MultiProcessing)DataLoaderIter
    | DataLoader\w*\.__next__
    | (^|/)(torch/utils/data|torchdata|webdataset|wids|nvidia/dali|ffcv|grain|litdata|petastorm|streaming/base|ray/data
        |tensorflow/python/data)/[\w./]*\.py\(
    | (^|/)(accelerate/data_loader|datasets/((iterable|arrow)_dataset|formatting/\w+))\.py\(
    | (^|/)(lightning/pytorch|pytorch_lightning)/\w+/fetch\w+\.py\( | (^|/)(queue|queues)\.py\(\d+\):\ get$
    | (?<![a-z])(dali|webdataset|wds)(?![a-z]|[\w/]*\.py) | \bIterator(V\d)?(::|GetNext) | IteratorGetNext
    | \bstoker[ ./:\w]*?[ ./:_](wait|__next__)
"""
# Names that people give to ranges and functions, as words: "prefetcher.next", "IteratorGetNext", "SBatchWait_3",
# "get_batch". The last words count: "wait_for_batch_grad" waits for no batch, "load_batch_to_gpu" loads none.
_DATA_WORDS = r"""
    (.*\ )? (
      (get|next|load|loading|fetch|fetching|read|reading|pull|dequeue|wait|waiting|await)
          (\ (for|the|a|next|new|train|training|val|valid|validation|test|input|data|mini|micro|host|from|queue))*
          \ (batch|batches|minibatch|data|inputs?|examples?|records?|loader|dataloader|iter|iterator|prefetcher)
    | (train|val|valid|test|predict|data|batch|input|loader|dataloader|iter|iterator|prefetcher|feeder|reader|generator
          |dataset) (\ get)? \ (next|wait|waiting|stall|load|loading|loader|fetch|fetching|fetcher)
    | (data|loader|dataloader|dataset) \ iter
    | (data|loader|input) (\ (wait|load|fetch))? \ time | batch \ (wait|load|fetch) \ time | data \ io
    | (get|fetch|next)\ batch\ (samples|on\ this\ tp\ rank) | data\ fetcher\ next | (data|batch|input)\ queue\ get
    | iter\ ((torch\ )?batches|dataloader) | (data|batch)\ generator
    | dataloader\ (train|val|valid|validation|test|eval)
    | (prepare|preprocess|sample|build|make|pack)\ (batch|minibatch|data) | preprocess(ing)?
    | (data|batch)\ (prep|preparation|augmentation) | dataset\ getitem | (train|val|valid|test)\ (data)?loader
    ) (\ (\d+|n))?
    | data | (data)?loader | dataload(ing)? | data\ (\d+|n) | input\ (pipeline|fn) | get\ next | tokenize | tokenization
"""
# TorchRec waits under this name for a copy on another stream, not for data.
_NOT_DATA = r"\#\#\s*wait_for_batch | dist\b | all2all | Awaitable"
_COLLATE = r"collat(e|ion|ing|or)(?![a-z]) | collate_fn"
_SYNC_CALL = r"synchroni[sz]e | urQueueFinish | urEventWait | Memcpy(WithStream|(DtoH|HtoD|DtoD)?(_v2)?)$"
_SYNC_OP = r"^aten::(item|_local_scalar_dense|is_nonzero)$"
_SYNC_PYTHON = r"""
    built-in\ method\ ((item|synchronize|is_nonzero|_cuda_synchronize)\b | (cpu|tolist)\ of\ Tensor) | :\ synchronize$
"""
_COLLECTIVE = r"""
      (?<![a-z])(nccl|rccl|oneccl|xccl|hccl|mccl|cncl|eccl|gloo|ucc|msccl|mscclpp)(?![a-z]*::detail::test)
    | ^(void\ )?hcom_ | nvshmem | rocshmem | ishmem
    | deep_?ep(::|_) (?!layout)
    | \b(intra|inter)node(_ll)?:: | \blow_latency_(dispatch|combine) | \bhybrid_ep\b
    | \bmori:: | (?<![a-z])ep_?(dispatch|combine) | a2a_?(dispatch|combine|prepare) | moe_?(a2a|comm|all_?to_?all)
    | all_?reduce | all_?gather | reduce_?scatter | all_?to_?all(?!_?merge) | all2all
    | cross_device_reduce | symm_?mem | multimem_ | one_?shot_(all|reduce) | two_?shot_(all|reduce)
"""
_COPY_CALL = re.compile(r"memcpy", re.IGNORECASE)
_LAUNCH_CALL = re.compile(r"launch|memcpy|memset|enqueue|runFunction|submit|Execute", re.IGNORECASE)
_PAGEABLE = re.compile(r"\(Pageable -> Device\)")
_TO_HOST = re.compile(r"DtoH|D2H|Device -> (Pageable|Pinned|Host|Unified)|DeviceToHost|M2H", re.IGNORECASE)
# Marks on a stream, which keep it busy with nothing.
_NO_WORK = re.compile(r"event_?(wait|record)|notify_?(wait|record)|^Context Sync|^Stream (Sync|Wait)", re.IGNORECASE)
_COPY_KERNEL = re.compile(r"^dma_request$|^memcpy|^copy(Host|Device|Buffer)", re.IGNORECASE)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_FRAME = re.compile(r".*\(\d+\): ")


# What a device is, by the words that its profilers use.
_DEVICES = (
    ("NPU", re.compile(r"ascend( hardware| ?\d.*)|npu \d+|cann|hccl|(hcom_|aclrt|aclnn|npu_|torch_npu).*", re.I)),
    ("HPU", re.compile(r"hpu_op|hpu \d+|.*\bgaudi.*", re.IGNORECASE)),
    ("accelerator", re.compile(r"(mtia|privateuse1)_\w+", re.IGNORECASE)),
)


def device_word(texts: Iterable[str]) -> str:
    """Return what a trace's devices are, by all texts that it has: "GPU", "NPU", ..."""
    texts = list(texts)
    return next((word for word, pattern in _DEVICES if any(map(pattern.fullmatch, texts))), "GPU")


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


def step_number(name: str) -> int | None:
    """Return N of "ProfilerStep#N"."""
    match = _STEP.fullmatch(name.strip())
    return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class EventNames:
    """Regular expressions, verbose ones in any case, for what names mean.

    Attributes:
        data: The thread waits for data, or makes them.
        data_words: The same, as words: small letters, one space between them, all of the name.
        not_data: It does not, whatever the two say.
        collate: It makes samples into a batch.
        synchronise: It waits for the device: calls of a runtime, operators, Python functions.
        communication: Kernels that communicate.
    """

    data: re.Pattern[str]
    data_words: re.Pattern[str]
    not_data: re.Pattern[str]
    collate: re.Pattern[str]
    synchronise: dict[EventKind, re.Pattern[str]] = field(hash=False)
    communication: re.Pattern[str]

    def extended(self, **more: Iterable[str]) -> EventNames:
        """Return a table that knows more.

        Args:
            more: By the attribute that they add to, regular expressions that are looked for anywhere in a name.

        Raises:
            ValueError: One of them is no regular expression.
            TypeError: There is no such attribute.
        """
        if unknown := more.keys() - vars(self).keys():
            raise TypeError(f"there are no names for {', '.join(sorted(unknown))}, only for {', '.join(vars(self))}")
        waits = more.pop("synchronise", ())
        return replace(
            self,
            synchronise={kind: _more(pattern, waits) for kind, pattern in self.synchronise.items()},
            **{what: _more(getattr(self, what), texts) for what, texts in more.items()},
        )

    def device_kind(self, name: str, kind: EventKind) -> EventKind:
        """Return what a device's event is, seen its name: kernels that communicate are set apart."""
        if kind not in (EventKind.KERNEL, EventKind.COLLECTIVE):
            return kind
        if _NO_WORK.search(name):
            return EventKind.IGNORED
        if kind is EventKind.KERNEL and _COPY_KERNEL.search(name):
            return EventKind.MEMCPY
        return EventKind.COLLECTIVE if kind is EventKind.COLLECTIVE or self.communication.search(name) else kind

    def what_is(self, name: str, kind: EventKind) -> Is:
        """Return what a name says about an event of a kind."""
        if kind is EventKind.LOOP:
            return Is.DATA_WAIT if name == "wait" else Is.NOTHING
        if kind is EventKind.MEMCPY:
            return _flags((Is.PAGEABLE, _PAGEABLE.search(name)), (Is.TO_HOST, _TO_HOST.search(name)))
        if kind not in HOST_KINDS:
            return Is.NOTHING
        if step_number(name) is not None and kind is not EventKind.PYTHON:
            return Is.STEP
        sync = (Is.SYNC, kind in self.synchronise and self.synchronise[kind].search(name))
        if kind is EventKind.RUNTIME:
            return _flags(sync, (Is.COPY_CALL, _COPY_CALL.search(name)), (Is.LAUNCH_CALL, _LAUNCH_CALL.search(name)))
        return _flags(sync, (Is.DATA_WAIT, self._is_data(name, kind)), (Is.COLLATE, self.collate.search(name)))

    def _is_data(self, name: str, kind: EventKind) -> bool:
        if self.data.search(name):
            return True
        if kind is EventKind.PYTHON:  # "train.py(30): get_batch": the file's name says nothing of the function
            file, function = name, _FRAME.sub("", name)
            if function == file:
                return False
            name = function
            # Whose next one it is only the file says: "utils/prefetcher.py(7): __next__", "iterators.py(9): __iter__".
            if name.strip("_") in ("next", "iter"):
                name = f"{file.partition('.py(')[0].rpartition('/')[2].rstrip('s')} next"
        elif kind is EventKind.HOST_OP and "::" in name:
            return False
        words = " ".join(_WORD.findall(name)).lower()
        return self.data_words.fullmatch(words) is not None and not self.not_data.search(name)


def _flags(*found: tuple[Is, object]) -> Is:
    return Is(sum(flag for flag, is_so in found if is_so))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.VERBOSE)


def _more(pattern: re.Pattern[str], more: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern with alternatives in which a space is a space."""
    found = pattern.pattern
    for text in more:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"{text!r} is no regular expression: {error}") from error
        found += "|(?:" + re.sub(r"(?<!\\)([ #])", r"\\\1", text) + ")"
    return _pattern(found)


NAMES = EventNames(
    data=_pattern(_DATA),
    data_words=_pattern(_DATA_WORDS),
    not_data=_pattern(_NOT_DATA),
    collate=_pattern(_COLLATE),
    synchronise={
        EventKind.RUNTIME: _pattern(_SYNC_CALL),
        EventKind.HOST_OP: _pattern(_SYNC_OP),
        EventKind.PYTHON: _pattern(_SYNC_PYTHON),
        EventKind.ANNOTATION: _pattern(r"(?!)"),
    },
    communication=_pattern(_COLLECTIVE),
)
"""What Stoker knows."""
