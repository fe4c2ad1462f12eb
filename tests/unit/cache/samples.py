"""Specs and arrays for the cache's tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from stoker import Entry, Ragged, Spec
from stoker.fields.spec import Arrays

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]


def entry(name, dtype, *, shape=(), num_levels=0):
    return Entry(name=name, dtype=np.dtype(dtype), shape=shape, num_levels=num_levels)


SPEC = Spec(
    (
        entry("id", "int64"),
        entry("dense", "float32", shape=(5,)),
        entry("flag", "bool"),
        entry("history", "int64", num_levels=1),
        entry("words", "uint8", num_levels=2),
    )
)


def arrays_of(spec: Spec, num_samples: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {item.name: _field(item, item.num_levels, num_samples, rng) for item in spec}


def _field(item, num_levels, num_rows, rng):
    if num_levels == 0:
        return rng.integers(0, 2 if item.dtype == np.bool_ else 100, (num_rows, *item.shape)).astype(item.dtype)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, num_rows))]).astype(np.int64)
    return Ragged(_field(item, num_levels - 1, int(offsets[-1]), rng), offsets)


def same(a, b) -> bool:
    if isinstance(a, Ragged):
        return isinstance(b, Ragged) and same(a.values, b.values) and same(a.offsets, b.offsets)
    return not isinstance(b, Ragged) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_fields(a: Arrays, b: Arrays) -> bool:
    return list(a) == list(b) and all(same(a[name], b[name]) for name in a)


def key(i: int) -> str:
    return f"{i % 16:x}" * 2 + f"{i:030x}"


@st.composite
def specs(draw) -> Spec:
    num = draw(st.integers(1, 6))
    return Spec(
        tuple(
            entry(
                f"f{i}",
                draw(st.sampled_from(DTYPES)),
                shape=tuple(draw(st.lists(st.integers(0, 4), max_size=2))),
                num_levels=draw(st.integers(0, 2)),
            )
            for i in range(num)
        )
    )
