"""Free memory as a machine has it that has run for a while, before something is timed that needs some.

A virtual machine that gives free memory back to its host, some seconds after it became free, must get every page from
there again, which costs more than decoding Parquet (docs/decisions/0006): whoever comes first would pay for all.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.measure import sized

# Linux looks for free pages to give back 2 s after some became free (mm/page_reporting.c).
GIVEN_BACK_S = sized(3.0, small=0.0)
_BLOCK = bytes(8 << 20)


def have_pages_at_hand(folder: Path, *, num_bytes: int) -> None:
    """Have the system hold so many free pages: a file as large is written and removed.

    Args:
        folder: Where the file may be.
        num_bytes: How many bytes.
    """
    let_pages_go()  # or those made here would be among what is given back in a moment
    path = folder / "pages"
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-num_bytes // len(_BLOCK))):
            file.write(_BLOCK)
    path.unlink()


def let_pages_go() -> None:
    """Wait until a system that gives free pages back has done so."""
    time.sleep(GIVEN_BACK_S)
