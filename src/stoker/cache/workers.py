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
from multiprocessing.context import SpawnProcess
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
# How long a process may take to end once nobody asks it for more; then it is killed.
_PATIENCE_S = 10.0


class TransformProcesses:
    """Calls a transform in processes, which are started when they are first needed, and do not outlive this one.

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
        self._processes: dict[_Pipe, SpawnProcess] = {}  # by the pipe to each, whose end is its end
        self._idle: queue.SimpleQueue[_Pipe | None] = queue.SimpleQueue()
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
            InterruptedError: This was closed.
        """
        pipe = self._idle.get()
        try:
            pipe = pipe or self._start()
            try:
                pipe.send(table)
                columns, error, trace, is_of_rows = pipe.recv()
            except (EOFError, OSError):
                raise TransformError(self._ended(pipe, where), fragment=where, is_of_rows=False) from None
        finally:
            self._idle.put(pipe if pipe in self._processes else None)
        if error is not None:
            failed = TransformError(f"the transform failed on {where}: {error}", fragment=where, is_of_rows=is_of_rows)
            failed.add_note(f"in a process of its own:\n{trace}")
            raise failed
        return cast("Columns", columns)

    def close(self) -> None:
        """End the processes. Harmless when called again.

        Blocks: until what they do is done, or for ten seconds.
        """
        with self._mutex:
            self._is_closed = True
            processes, self._processes = self._processes, {}
        for pipe in processes:
            pipe.close()
        for process in processes.values():
            _join(process)

    def _start(self) -> _Pipe:
        context = multiprocessing.get_context("spawn")
        with self._mutex:
            if self._is_closed:
                raise InterruptedError("the loader was closed")
            pipe, theirs = context.Pipe()
            arguments = self._transform, theirs, os.getpid()
            process = context.Process(target=_serve, args=arguments, name="stoker-transform", daemon=True)
            # Blocked in this thread, and so in the process until it ignores them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
            try:
                process.start()
                self._processes[pipe] = process
            except BaseException:
                pipe.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                theirs.close()
            return pipe

    def _ended(self, pipe: _Pipe, where: str) -> str:
        """Forget a process that ended, and return what to say about it."""
        pipe.close()
        with self._mutex:
            process = self._processes.pop(pipe, None)
        if process is None:
            raise InterruptedError("the loader was closed")
        return (
            f"a process that ran the transform ended with exit code {_join(process)} while it had {where}. If it ended "
            f"at once: a script that uses processes must start its work under `if __name__ == '__main__':`. If it was "
            f"killed: perhaps for memory; use fewer threads or a smaller chunk_size"
        )


def _join(process: SpawnProcess) -> int | None:
    """Return the exit code of a process, once it has ended."""
    process.join(_PATIENCE_S)
    if process.exitcode is None:
        process.kill()  # it does not listen to SIGTERM
        process.join()
    code = process.exitcode
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
