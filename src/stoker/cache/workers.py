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
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import cast

import pyarrow as pa

from stoker.columns import Columns
from stoker.errors import TransformError
from stoker.storage.failures import is_of_surroundings

Transform = Callable[[pa.Table], Columns]
_Pipe = multiprocessing.connection.Connection

# How often a process looks whether its parent lives. Only matters where a fork of the parent holds the pipe open.
_WATCH_S = 1.0
# Shells and schedulers tell all processes of a job; only the parent answers, and may want some batches more.
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
# How long a process may take to end once nobody asks it for more; then it is ended.
_PATIENCE_S = 10.0


class TransformProcesses:
    """Calls a transform in processes, which are started when they are first needed.

    Each call waits for one process, so as many threads as processes keep all of them busy.

    Args:
        transform: A function that can be pickled.
        num: Processes at most.

    Raises:
        ValueError: It cannot be sent to a process; the message says what to do.
    """

    def __init__(self, transform: Transform, num: int) -> None:
        if (error := _why_not(transform)) is not None:
            raise ValueError(
                f"transform_in='processes': the transform cannot be sent to another process ({error}); make it a "
                f"module-level function, or use transform_in='threads'"
            ) from error
        self._transform = transform
        self._mutex = threading.Lock()
        self._is_closed = False
        self._all: set[_Process] = set()
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(num):
            self._idle.put(None)  # stands for one not started yet

    def __call__(self, table: pa.Table, where: str) -> Columns:
        """Return what the transform makes of a table.

        Blocks: until a process is free and has done it.

        Args:
            table: Rows of a fragment.
            where: That fragment, for errors.

        Raises:
            TransformError: The transform raised, with the traceback of there as a note; or its process ended.
        """
        process = self._idle.get()
        try:
            process = process or self._start()
            columns, error, trace, is_of_rows = process.call(table)
        except (EOFError, OSError):
            assert process is not None, "it was started"
            raise TransformError(self._ended(process, where), fragment=where, is_of_rows=False) from None
        finally:
            self._idle.put(process if process in self._all else None)
        if error is not None:
            failed = TransformError(f"the transform failed on {where}: {error}", fragment=where, is_of_rows=is_of_rows)
            failed.add_note(f"in a process of its own:\n{trace}")
            raise failed
        return columns

    def close(self) -> None:
        """End the processes. Harmless when called again.

        Blocks: until what they do is done, or for ten seconds.
        """
        with self._mutex:
            self._is_closed = True
            processes, self._all = self._all, set()
        for process in processes:
            process.hang_up()
        for process in processes:
            process.join()

    def _start(self) -> _Process:
        with self._mutex:
            if self._is_closed:
                raise InterruptedError("the loader was closed")
            process = _Process(self._transform)
            self._all.add(process)
            return process

    def _ended(self, process: _Process, where: str) -> str:
        """Forget a process that ended, and return what to say about it."""
        with self._mutex:
            self._all.discard(process)
        process.hang_up()
        return (
            f"a process that ran the transform ended with exit code {process.join()} while it had {where}. If it ended "
            f"at once: a script that uses processes must start its work under `if __name__ == '__main__':`. If it was "
            f"killed: perhaps for memory; use fewer threads or a smaller chunk_size"
        )


class _Process:
    """A started process and the pipe to it, whose end is the end of the process: none outlives its parent."""

    def __init__(self, transform: Transform) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(transform, theirs, os.getpid()), name="stoker-transform", daemon=True
        )
        # Blocked in this thread, and so in the process until it ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        try:
            self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def call(self, table: pa.Table) -> tuple[Columns, str | None, str, bool]:
        """Return the columns; or the error and its traceback, as texts, and whether the rows are why."""
        self._pipe.send(table)
        return cast("tuple[Columns, str | None, str, bool]", self._pipe.recv())

    def hang_up(self) -> None:
        self._pipe.close()

    def join(self) -> int | None:
        """Return the exit code, once it has ended."""
        self._process.join(_PATIENCE_S)
        if self._process.exitcode is None:
            self._process.kill()  # it does not listen to SIGTERM
            self._process.join()
        code = self._process.exitcode
        self._process.close()
        return code


def can_be_sent(transform: Transform) -> bool:
    """Return whether processes can be told of a transform: not of a lambda."""
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
