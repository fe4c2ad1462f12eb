"""Trains from a cache while each call that changes its disk fails, one after the other; run with `faults.c` preloaded.

python -m tests.crash.faults FOLDER STEP [ERROR ...]       every STEP-th call, with each error
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import shutil
import sys
from pathlib import Path

from tests.strategies import write_files

import stoker
from stoker.cache import admin
from stoker.cache.store import Store

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE")
NUM_ROWS = 200
ALWAYS = 1 << 40


def train(dataset, cache, *, num_epochs=2):
    """Return the rows of some epochs, and what the loader did."""
    with stoker.Loader(
        dataset, batch_size=20, shuffle=True, window=3, num_threads=1, cache=cache, cache_limit="60kB"
    ) as loader:
        return [[x for batch in loader for x in batch["id"].tolist()] for _ in range(num_epochs)], loader.stats()


def main(folder: Path, step: int, errors: list[str]) -> None:
    """Try all, and print how many that were."""
    faults = ctypes.CDLL(None).stoker_faults
    faults.argtypes, faults.restype = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int], ctypes.c_long
    logging.getLogger("stoker").setLevel(logging.ERROR)
    cache, template = folder / "cache", folder / "template"
    old = stoker.Dataset(write_files(folder / "old", [NUM_ROWS], row_group_size=20), chunk_size=1_000)
    dataset = stoker.Dataset(write_files(folder / "data", [NUM_ROWS], row_group_size=20), chunk_size=1_000)
    train(old, template)  # so that something is evicted, as well
    shutil.copytree(template, cache, symlinks=True)
    faults(bytes(cache), ALWAYS, 0, 0)
    expected, _ = train(dataset, cache)
    num_calls = faults(bytes(cache), ALWAYS, 0, 0)
    num_tried = num_refused = 0
    for error in errors:
        for num in (1, ALWAYS):
            for at in range(num_tried % step, num_calls, step):
                where = f"{error} at call {at} of {num_calls}, {'once' if num == 1 else 'from there on'}"
                shutil.rmtree(cache)
                shutil.copytree(template, cache, symlinks=True)
                faults(bytes(cache), at, num, getattr(errno, error))
                try:
                    rows, _ = train(dataset, cache)
                    assert rows == expected, f"other rows: {where}"
                except stoker.CacheError as error_of_ours:  # a folder that cannot be opened is said so
                    num_refused += 1
                    if str(folder) not in str(error_of_ours):
                        raise
                finally:
                    faults(bytes(cache), ALWAYS, 0, 0)
                rows, stats = train(dataset, cache)
                assert rows == expected, f"other rows later: {where}"
                assert stats.num_mended == 0, f"a chunk was left damaged: {where}"
                with Store(cache) as store:
                    assert admin.verify(store).corrupt == (), where
                    assert admin.verify(store).strays == (), where
                    used = store.disk.quota.recount()
                assert sum(path.stat().st_size for path in (cache / "chunks").iterdir()) == used <= 60_000, where
                assert list((cache / "tmp").iterdir()) == [], where
                num_tried += 1
    with contextlib.suppress(OSError):
        shutil.rmtree(cache)
    sys.stdout.write(f"{num_tried} {num_calls} {num_refused}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(ERRORS))
