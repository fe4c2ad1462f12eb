"""Transforms in processes of their own, for those that hold the interpreter's lock.

    here      decode ─► ──pipe──┐           ┌──pipe──► convert ─► publish
    process                     └─► transform

Only tables and what becomes of them cross: reading, decoding and writing need the lock for moments and stay in threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import TypeAlias, cast

import pyarrow as pa

from stoker.columns import Columns
from stoker.errors import TransformError
from stoker.storage.failures import is_of_surroundings

Transform: TypeAlias = Callable[[pa.Table], Columns]
_Pipe: TypeAlias = multiprocessing.connection.Connection
_Worker: TypeAlias = tuple[SpawnProcess, _Pipe]
"""A process, and the pipe to it, whose end is its end."""

# How often a process looks whether its parent lives. Only matters where a fork of the parent holds the pipe open.
_WATCH_S = 1.0
# Shells and schedulers tell all processes of a job; only the parent answers, and may want some batches more.
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
# How long a process may take to end once nobody asks it for more; then it is killed.
_PATIENCE_S = 10.0


class TransformProcesses:
    """Calls a transform in processes, which are started when they are first needed, and do not outlive this one.

    Each call takes a process for itself, so as many threads as processes keep all of them busy. A `ValueError` says
    that it cannot be sent to one, and what to do.
    """

    def __init__(self, transform: Transform, num: int) -> None:
        if (error := _why_not(transform)) is not None:
            raise ValueError(
                f"transform_in='processes': the transform cannot be sent to another process ({error}); make it a "
                f"module-level function, or use transform_in='threads'"
            ) from error
        self._transform, self._mutex = transform, threading.Lock()
        self._alive: set[_Worker] = set()
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(num):
            self._idle.put(None)  # stands for one not started yet

    def __call__(self, table: pa.Table, where: str) -> Columns:
        """Return what the transform makes of the rows of a fragment, when a process is free and has done it.

        A `TransformError` says what it raised, with the traceback of there as a note; or that its process ended.
        """
        worker, free = self._idle.get(), None
        try:
            worker = worker or self._start()
            worker[1].send(table)
            columns, error, trace, is_of_rows = worker[1].recv()
            free = worker
        except (EOFError, OSError):
            if worker is None:
                raise
            raise TransformError(
                f"a process that ran the transform ended with exit code {self._end(worker)} while it had {where}. If "
                f"it ended at once: a script that uses processes must start its work under `if __name__ == "
                f"'__main__':`. If it was killed: perhaps for memory; use fewer threads or a smaller chunk_size",
                fragment=where,
                is_of_rows=False,
            ) from None
        finally:
            self._idle.put(free)
            if worker is not None and free is None:  # who had it next would get the answer that is still to come
                self._end(worker, patience_s=0)
        if error is not None:
            failed = TransformError(f"the transform failed on {where}: {error}", fragment=where, is_of_rows=is_of_rows)
            failed.add_note(f"in a process of its own:\n{trace}")
            raise failed
        return cast("Columns", columns)

    def close(self) -> None:
        """End the processes. Harmless when called again.

        Blocks: until what they do is done, and they have ended; they are killed where that takes ten seconds.
        """
        workers = list(self._alive)
        for _, pipe in workers:
            pipe.close()  # of all, before one is waited for
        for worker in workers:
            self._end(worker)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        arguments = self._transform, theirs, os.getpid()
        process = context.Process(target=_serve, args=arguments, name="stoker-transform", daemon=True)
        multiprocessing.resource_tracker.ensure_running()  # which unblocks them here, where the first process starts it
        # Blocked in this thread, and so in the process until it ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        try:
            with self._mutex:
                process.start()
                self._alive.add(worker := (process, pipe))
        except BaseException:
            pipe.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        return worker

    def _end(self, worker: _Worker, *, patience_s: float = _PATIENCE_S) -> int | None:
        """Return the exit code of a process once it has ended, or was killed; None where another call has ended it."""
        process, pipe = worker
        with self._mutex:
            if worker not in self._alive:
                return None
            self._alive.remove(worker)
        pipe.close()
        process.join(patience_s)
        if process.exitcode is None:
            process.kill()  # it does not listen to SIGTERM
            process.join()
        code = process.exitcode
        with self._mutex:  # who starts another one looks at all that there are
            process.close()
        return code


def can_be_sent(transform: Transform) -> bool:
    """Return whether a transform can be pickled, and so sent to a process: a lambda cannot."""
    return _why_not(transform) is None


def _why_not(transform: Transform) -> Exception | None:
    try:
        ForkingPickler.dumps(transform)
    except Exception as error:  # pickle raises whatever the object's own methods raise
        return error
    return None


def _serve(transform: Transform, pipe: _Pipe, parent: int) -> None:
    """Transform what comes until the parent hangs up."""
    for one in _ENDINGS:
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
    threading.Thread(target=_watch, args=(parent,), name="stoker-watch", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            table = pipe.recv()
            try:
                answer = ForkingPickler.dumps((transform(table), None, "", True))
            except Exception as error:  # whatever it is, the parent's step gets it
                text = f"{type(error).__name__}: {error}"
                trace = "".join(traceback.format_exception(error))
                answer = ForkingPickler.dumps((None, text, trace, not is_of_surroundings(error)))
            pipe.send_bytes(answer)


def _watch(parent: int) -> None:
    process = multiprocessing.process.parent_process()
    while process is not None and os.getppid() == parent:
        if multiprocessing.connection.wait([process.sentinel], timeout=_WATCH_S):
            break
    os._exit(1)
