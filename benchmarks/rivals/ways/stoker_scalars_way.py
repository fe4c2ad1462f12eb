"""Stoker on the columns that Petastorm can deliver, for a like-for-like line in the table."""

from __future__ import annotations

from contest import SCALARS, Settings, run
from stoker_way import Way

import stoker


class ScalarsWay(Way):
    """The same loader without lists and strings."""

    def __init__(self, settings: Settings) -> None:
        dataset = stoker.Dataset(settings.files, columns=SCALARS)
        self._loader = self._open(dataset, settings)


if __name__ == "__main__":
    run(
        "Stoker, numbers only",
        ScalarsWay,
        versions=["stoker", "numpy", "pyarrow"],
        note="the columns that Petastorm delivers",
    )
