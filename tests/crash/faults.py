"""Trains from a cache while each call that changes its disk fails, one after the other; run with `faults.c` preloaded.

python -m tests.crash.faults FOLDER STEP [ERROR ...]       every STEP-th call, with each error

The error "POWER" is a power failure at the call: what calls before it did to names is on the disk, and of what was
written into files, which is never synced, any part may not be.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import logging
import os
import random
import shutil
import sys
import traceback
from pathlib import Path

from tests.strategies import write_files

import stoker
from stoker.cli import main as command

POWER = "POWER"
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE", POWER)
NUM_ROWS = 200
ALWAYS = 1 << 40
NAMES = {"checked", "chunks", "datasets", "locks", "source", "stoker-cache.json", "tmp", "usage"}


def train(dataset, cache, *, num_epochs=2):
    """Return the rows of some epochs, and what the loader did."""
    with stoker.Loader(
        dataset, batch_size=20, shuffle=True, window=3, num_threads=1, cache=cache, cache_limit="60kB"
    ) as loader:
        return [[x for batch in loader for x in batch["id"].tolist()] for _ in range(num_epochs)], loader.stats()


def contents(cache):
    """Return what is in each file."""
    return {path: path.read_bytes() for path in cache.rglob("*") if path.is_file() and not path.is_symlink()}


def lose_power(call, cache, draw):
    """Make a call in a process that a fault ends, and then lose what any of the files have that it wrote."""
    before = contents(cache)
    child = os.fork()
    if not child:
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 9)
    for path, data in contents(cache).items():
        if data != before.get(path):
            half = len(data) // 2
            left = [data, b"", bytes(len(data)), data[:half], data[:half] + bytes(len(data) - half)]
            path.write_bytes(draw.choice([*left, before.get(path, b"")]))


def check(dataset, cache, expected, where, *, may_mend):
    """Train from what was left, and look at what that leaves."""
    for is_again in (False, True)[: 1 + may_mend]:
        rows, stats = train(dataset, cache)
        assert rows == expected, f"other rows later: {where}"
        assert stats.num_mended == 0 or (may_mend and not is_again), f"a chunk was left damaged: {where}"
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert command(["cache", "verify", str(cache), "--json"]) == 0, (where, told.getvalue())
    report = json.loads(told.getvalue())
    assert report["strays"] == [], where
    assert sum(path.stat().st_size for path in (cache / "chunks").iterdir()) == report["size_bytes"] <= 60_000, where
    assert {path.name for path in cache.iterdir()} == NAMES, where
    assert list((cache / "tmp").iterdir()) == [], where


def main(folder: Path, step: int, errors: list[str]) -> None:
    """Try all, and print how many that were."""
    faults = ctypes.CDLL(None).stoker_faults
    faults.argtypes, faults.restype = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int], ctypes.c_long
    logging.getLogger("stoker").setLevel(logging.ERROR)
    cache, template, draw = folder / "cache", folder / "template", random.Random(7)
    old = stoker.Dataset(write_files(folder / "old", [NUM_ROWS], row_group_size=20), chunk_size=1_000)
    dataset = stoker.Dataset(write_files(folder / "data", [NUM_ROWS], row_group_size=20), chunk_size=1_000)
    train(old, template)  # so that something is evicted, as well
    (folder / "nothing").mkdir()
    shutil.copytree(template, cache, symlinks=True)
    faults(bytes(cache), ALWAYS, 0, 0)
    expected, _ = train(dataset, cache)
    num_calls = faults(bytes(cache), ALWAYS, 0, 0)
    num_tried = num_refused = 0
    for error in errors:
        for is_first in (True, False):
            for at in range(num_tried % step, num_calls, step):
                how = ("from a cache", "from nothing") if error == POWER else ("once", "from there on")
                where = f"{error} at call {at} of {num_calls}, {how[not is_first]}"
                shutil.rmtree(cache)
                shutil.copytree(folder / "nothing" if where.endswith("nothing") else template, cache, symlinks=True)
                try:
                    if error == POWER:
                        lose_power(lambda at=at: (faults(bytes(cache), at, 1, 0), train(dataset, cache)), cache, draw)
                    else:
                        faults(bytes(cache), at, 1 if is_first else ALWAYS, getattr(errno, error))
                        rows, _ = train(dataset, cache)
                        assert rows == expected, f"other rows: {where}"
                except stoker.CacheError as error_of_ours:  # a folder that cannot be opened is said so
                    num_refused += 1
                    if str(folder) not in str(error_of_ours):
                        raise
                finally:
                    faults(bytes(cache), ALWAYS, 0, 0)
                check(dataset, cache, expected, where, may_mend=error == POWER)
                num_tried += 1
    with contextlib.suppress(OSError):
        shutil.rmtree(cache)
    sys.stdout.write(f"{num_tried} {num_calls} {num_refused}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(ERRORS))
