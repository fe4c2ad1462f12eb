"""Threads and processes that tests start.

Processes of a server which has imported torch and Stoker begin in a tenth of the time.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["tests.crash.builders", "tests.integration.train_ranks"])


def wait_until(is_so: Callable[[], bool], *, patience_s: float = 60) -> None:
    """Wait for what other threads do, and fail the test where it does not come about."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def in_threads(work: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Call `work` with each argument, at once, in a thread each; return what they return, or raise what one raises."""
    calls = list(arguments)
    met = threading.Barrier(len(calls))

    def begin(argument: Any) -> Any:
        met.wait(60)
        return work(argument)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))


def python(*words: Any, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start a Python of its own with the words of a command line; what this one can import, it can."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | (env or {})
    return subprocess.Popen([sys.executable, *map(str, words)], env=environ, text=True, **options)


def started(*words: Any, **variables: str) -> subprocess.Popen[str]:
    """Start a rank, or what starts ranks; all that it says is one text."""
    environ = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",  # else gloo asks for this machine's name
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return python(*words, env=environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def torchrun(num_ranks: int) -> list[str]:
    """Return the words by which torchrun starts so many ranks of the script that follows."""
    ranks = [f"--nproc-per-node={num_ranks}", "--standalone", "--local-addr=127.0.0.1"]
    return ["-m", "torch.distributed.run", *ranks]


def ends_of(work: Callable[..., object], num: int, *shared: Any) -> set[int | None]:
    """Call `work(i, num, *shared)` in each of so many processes at once; return how they ended: 0, or why not."""
    processes = [SERVED.Process(target=_begin, args=(work, i, num, *shared)) for i in range(num)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return {process.exitcode for process in processes}
    finally:  # none outlives a test that took too long: the interpreter would wait for it at its end
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
            process.close()


def _begin(work: Callable[..., object], *arguments: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    work(*arguments)
