"""Training that is left and goes on: by a loader on each of some ranks, from one state, to one state."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import pytest

import stoker


def train(
    data: Any,
    state: str | None,
    *,
    num_steps: int,
    num_epochs: int = 10**9,
    world_size: int = 1,
    allow: Collection[Any] = (),
    ids_in: Callable[[Any], list[int]] = lambda batch: batch["id"].tolist(),
    **options: Any,
) -> tuple[list[tuple[int, list[int]]], str]:
    """Return epoch and ids of some steps over all ranks, and the state behind them: the same on every rank."""
    ranks, states = [], set()
    for rank in range(world_size):
        with stoker.Loader(data, rank=rank, world_size=world_size, **options) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state), allow=allow)
            steps: list[tuple[int, list[int]]] = []
            while loader.epoch < num_epochs and len(steps) < num_steps:
                epoch = loader.epoch
                for batch in loader:
                    steps.append((epoch, ids_in(batch)))
                    if len(steps) == num_steps:
                        break
            states.add(json.dumps(loader.state_dict()))
            ranks.append(steps)
    assert len(states) == 1
    together = [(step[0][0], [i for _, ids in step for i in ids]) for step in zip(*ranks, strict=True)]
    return together, states.pop()


def refused(data: Any, state: str, *, allow: Collection[Any] = (), **options: Any) -> str:
    """Return what a loader says of a state that it refuses, which changes nothing."""
    with stoker.Loader(data, **options) as loader:
        before = loader.state_dict()
        with pytest.raises(stoker.ResumeError) as caught:
            loader.load_state_dict(json.loads(state), allow=allow)
        assert loader.state_dict() == before
    return str(caught.value)
