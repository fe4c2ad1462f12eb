"""Building in processes, for transforms that hold the GIL.

    parent   17, 18, … ──pipe──►  worker   the same builder, the same store
    parent   ◄── the chunk's file, or failed/<key>.<pid>.json

Numbers of chunks go to the workers; nothing comes back but what lies in the cache. The end of the pipe is the end of
the worker, so that none outlives its parent, however that ended.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from stoker.cache.builder import Builder
from stoker.cache.folder import Files
from stoker.cache.store import Store
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset
from stoker.dataset.runs import RunRule
from stoker.errors import (
    CacheError,
    CacheFullError,
    ChunkCorruptError,
    FieldError,
    FieldMismatchError,
    SourceChangedError,
    SourceError,
    SourceMissingError,
    StokerError,
    TransformError,
)
from stoker.fields.spec import Spec
from stoker.metrics.stages import OnStage, ignore_stage, timed

# How often a parent looks for a chunk that a worker builds. Short against building one, long against a file lookup.
_POLL_S = 0.005
# How often a worker looks whether its parent lives. Only matters where a fork of the parent holds the pipe open.
_WATCH_S = 1.0
# How long a worker may go on with a chunk after close; then it is ended, which leaves nothing behind either.
_PATIENCE_S = 10.0

# The attribute that each of our errors has beside its message, and how it is read back.
_KINDS: dict[type[StokerError], tuple[str, Callable[[Any], Any]]] = {
    SourceError: ("url", str),
    SourceMissingError: ("url", str),
    SourceChangedError: ("url", str),
    FieldError: ("columns", tuple),
    TransformError: ("fragment", str),
    FieldMismatchError: ("fragment", str),
    CacheError: ("path", Path),
    CacheFullError: ("path", Path),
    ChunkCorruptError: ("path", Path),
}


@dataclass(frozen=True)
class _Task:
    """What a worker needs to know; goes to it once, when it is started."""

    dataset: Dataset
    fingerprint: str
    folder: Path
    limit_bytes: int | None
    keeps_catalogue: bool
    reserve_bytes: int
    kept_together: RunRule | None


_Connection = multiprocessing.connection.Connection


class _Worker:
    """A started process and the pipe to it."""

    def __init__(self, task: _Task) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, self._sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_work, args=(task, receiver, os.getpid()), name="stoker-build", daemon=True
        )
        try:
            self.process.start()
        except BaseException:
            self._sender.close()
            raise
        finally:
            receiver.close()

    @property
    def pid(self) -> int:
        pid = self.process.pid
        assert pid is not None, "it was started"
        return pid

    def send(self, i: int, key: str, *, may_overflow: bool) -> None:
        self._sender.send_bytes(f"{i} {key} {int(may_overflow)}".encode())

    def hang_up(self) -> None:
        self._sender.close()

    def join(self, timeout_s: float) -> None:
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.terminate()
            self.process.join()
        self.process.close()


class ProcessBuilder:
    """Builds chunks in processes of its own; otherwise as `Builder`.

    Each call of `build` waits for one worker, so as many threads as processes keep all of them busy. Processes start
    when they are first needed.

    Args:
        catalogue: The opened data set.
        store: Where chunks go.
        num_processes: Number of workers.
        keeps_catalogue: Whether the workers find the opened data set in the store's folder.
        on_stage: Told how long each chunk took, as the stage "process": what happens inside stays in the worker.
        reserve_bytes: See `Registry.register`.

    Raises:
        ValueError: The data set cannot be sent to a process; the message says what to do.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        *,
        num_processes: int,
        keeps_catalogue: bool = True,
        on_stage: OnStage = ignore_stage,
        reserve_bytes: int = 0,
    ) -> None:
        check_can_be_sent(catalogue.dataset)
        self._catalogue = catalogue
        self._store = store
        self._on_stage = on_stage
        self._here = Builder(catalogue, store, on_stage=on_stage, reserve_bytes=reserve_bytes)
        self._task = _Task(
            catalogue.dataset,
            catalogue.fingerprint,
            store.path,
            store.limit_bytes,
            keeps_catalogue,
            reserve_bytes,
            catalogue.kept_together,
        )
        self._mutex = threading.Lock()
        self._is_closed = False
        self._workers: set[_Worker] = set()
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(num_processes):
            self._idle.put(None)  # stands for one not started yet

    def find_spec(self, first: int | None = None) -> Spec:
        """Return what a sample is. The one chunk that may have to be built for it is built in this process."""
        return self._here.find_spec(first)

    @property
    def permits(self) -> None:
        """None: nobody computes here."""
        return None

    def build(self, i: int, *, may_overflow: bool = True) -> bool:
        """Have chunk i built; False where another process than these workers is at it.

        Blocks: until a worker is free, and until the chunk is there.

        Raises:
            InterruptedError: The builder was closed.
            StokerError: As `Builder.build`; the worker's traceback is a note.
        """
        self.find_spec()
        key = self._catalogue.key(i)
        if self._store.has(key):
            return True
        self._store.check_writable()
        if self._store.is_locked(self._catalogue.key(self._catalogue.unit(i)[0])):
            return False
        worker = self._idle.get()
        try:
            with self._store.pin(key), timed(self._on_stage, "process"):
                worker = self._running(worker)
                worker.send(i, key, may_overflow=may_overflow)
                self._wait(worker, i, key)
                with contextlib.suppress(FileNotFoundError):  # evicted already
                    self._store.count_built(key, self._store.path_of(key).stat().st_size)
        except BrokenPipeError:
            raise self._died(worker, i) from None
        finally:
            self._idle.put(worker if worker is None or worker in self._workers else None)
        return True

    def close(self) -> None:
        """End the workers. Harmless when called again.

        Blocks: until the chunks they are at are done, or for ten seconds.
        """
        with self._mutex:
            self._is_closed = True
            workers, self._workers = self._workers, set()
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.join(_PATIENCE_S)

    def _running(self, worker: _Worker | None) -> _Worker:
        with self._mutex:
            if self._is_closed:
                raise InterruptedError("the loader was closed")
            if worker is None:
                worker = _Worker(self._task)
                self._workers.add(worker)
            return worker

    def _wait(self, worker: _Worker, i: int, key: str) -> None:
        failure = _failure_path(self._store.folder.failed, key, worker.pid)
        while not self._store.has(key):
            is_dead = bool(multiprocessing.connection.wait([worker.process.sentinel], timeout=_POLL_S))
            error = _take_failure(failure, fragment=str(self._catalogue.fragments[i]))
            if error is not None:
                raise error
            if self._is_closed:
                raise InterruptedError("the loader was closed")
            if is_dead and not self._store.has(key):
                raise self._died(worker, i)

    def _died(self, worker: _Worker | None, i: int) -> TransformError:
        assert worker is not None
        with self._mutex:
            self._workers.discard(worker)
        worker.hang_up()
        worker.process.join()
        code = worker.process.exitcode
        worker.process.close()
        fragment = str(self._catalogue.fragments[i])
        return TransformError(
            f"a build process ended with exit code {code} while it had {fragment} to build. If it ended at once: a "
            f"script that uses processes must start its work under `if __name__ == '__main__':`. If it was killed: "
            f"perhaps for memory; use fewer processes or a smaller chunk_size",
            fragment=fragment,
        )


def check_can_be_sent(dataset: Dataset) -> None:
    """Raise where processes of other builders could not be told of `dataset`.

    Raises:
        ValueError: As for a transform that is a lambda, or a storage that holds a connection.
    """
    for what, value, way_out in (
        ("transform", dataset.transform, "make it a module-level function"),
        ("data set", dataset, "use a storage that can be pickled"),
    ):
        try:
            ForkingPickler.dumps(value)
        except Exception as error:  # pickle raises whatever the object's own methods raise
            raise ValueError(
                f"transform_in='processes': the {what} cannot be sent to another process ({error}); {way_out}, or use "
                f"transform_in='threads'"
            ) from error


def can_be_sent(dataset: Dataset) -> bool:
    """Return whether processes of other builders could be told of `dataset`; see `check_can_be_sent`."""
    try:
        check_can_be_sent(dataset)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------- in the worker


def _work(task: _Task, numbers: _Connection, parent: int) -> None:
    """Build what the parent asks for until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_watch, args=(parent,), name="stoker-watch", daemon=True).start()
    with Store(task.folder, limit_bytes=task.limit_bytes) as store:
        builder: Builder | None = None
        while True:
            try:
                number, key, may_overflow = numbers.recv_bytes().decode().split()
            except EOFError:
                return
            try:
                if builder is None:
                    builder = _builder(task, store)
                _build(builder, int(number), may_overflow=may_overflow == "1")
            except Exception as error:  # whatever it is, the parent's step gets it
                _write_failure(_failure_path(store.folder.failed, key, os.getpid()), error, Files())


def _builder(task: _Task, store: Store) -> Builder:
    catalogue = task.dataset.open(task.folder if task.keeps_catalogue else None, runs=task.kept_together)
    if catalogue.fingerprint != task.fingerprint:
        raise SourceChangedError(
            f"{', '.join(map(str, task.dataset.sources))} changed since it was opened", url=str(task.dataset.sources[0])
        )
    return Builder(catalogue, store, reserve_bytes=task.reserve_bytes)


def _build(builder: Builder, i: int, *, may_overflow: bool) -> None:
    wait = threading.Event().wait
    while not builder.build(i, may_overflow=may_overflow):
        wait(_POLL_S)


def _watch(parent: int) -> None:
    process = multiprocessing.process.parent_process()
    while process is not None and os.getppid() == parent:
        if multiprocessing.connection.wait([process.sentinel], timeout=_WATCH_S):
            break
    os._exit(1)  # at any moment: what a chunk in the making leaves is swept by the next store


def _failure_path(folder: Path, key: str, pid: int) -> Path:
    """Return where the process `pid` says why it could not build a chunk."""
    return folder / f"{key}.{pid}.json"


def _write_failure(path: Path, error: BaseException, files: Files) -> None:
    """Write down an error with its traceback, whole or not at all."""
    kind = type(error) if type(error) in _KINDS else None
    name = _KINDS[kind][0] if kind is not None and issubclass(kind, StokerError) else None
    value = getattr(error, name) if name is not None else None
    content = {
        "kind": None if kind is None else kind.__name__,
        "message": str(error) if kind is not None else f"{type(error).__name__}: {error}",
        "value": list(value) if isinstance(value, tuple) else str(value),
        "notes": getattr(error, "__notes__", []),
        "traceback": "".join(traceback.format_exception(error)),
    }
    files.write_small(path, json.dumps(content).encode(), aside=path.with_suffix(".new"))


def _take_failure(path: Path, *, fragment: str) -> StokerError | None:
    """Return the error that a build process wrote down, and remove the file; None where there is none."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)
    kind = next((kind for kind in _KINDS if kind.__name__ == content["kind"]), None)
    error: StokerError
    if kind is None:
        error = TransformError(f"a build process failed on {fragment}: {content['message']}", fragment=fragment)
    else:
        name, parse = _KINDS[kind]
        make: Callable[..., StokerError] = kind
        error = make(content["message"], **{name: parse(content["value"])})
    for note in content["notes"]:
        error.add_note(note)
    error.add_note(f"in a build process:\n{content['traceback']}")
    return error
