"""Transforms of test_workers, in a module that processes import in no time."""

from __future__ import annotations

import os
import time

import numpy as np


def doubled(table):
    return {"x": table["id"].to_numpy() * 2, "pid": np.full(table.num_rows, os.getpid())}


def failing(table, *, at):
    if at in table["id"].to_pylist():
        raise KeyError("no such crossing")
    return {"x": table["id"].to_numpy()}


def dying(table):
    if 300 in table["id"].to_pylist():
        os._exit(7)
    return {"x": table["id"].to_numpy()}


def changing(table):
    return {"x": table["id"].to_numpy().astype(np.int64 if table["id"][0].as_py() == 0 else np.int32)}


def waiting(table, *, folder):
    if table["id"][0].as_py() == 1:
        (folder / "begun").touch()
        while not (folder / "goes on").exists():
            time.sleep(0.005)
    return {"x": table["id"].to_numpy()}
