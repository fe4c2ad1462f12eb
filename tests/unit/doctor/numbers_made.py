"""Measurements that nobody took: of a path from the source that a link starves, and any others."""

import dataclasses

from hypothesis import strategies as st

from stoker.doctor.results import (
    ARROW,
    COLUMNS,
    DEDUPLICATED,
    LARGER,
    PROCESSES,
    RAM,
    SHARED,
    SOURCE,
    SUPPLY,
    TENSORS,
    THREADS,
    DataFacts,
    Measurements,
    PathResult,
    StageResult,
)

BATCH = 4_096
NAMES = {
    SOURCE: "every epoch from the source",
    TENSORS: "tensors on SSD",
    ARROW: "Arrow on SSD",
    RAM: "batches in RAM",
    SHARED: "batches in RAM, a loader beside them",
    SUPPLY: "today's path with no step behind it",
    THREADS: "8 threads",
    PROCESSES: "the transform in processes",
    COLUMNS: "no column history",
    DEDUPLICATED: "repeated features kept once, on SSD",
    LARGER: "batches of 16,384",
}
BUILDING = {"fetch": 4e-6, "decode": 1e-6, "convert": 0.1e-6, "batch": 4e-6, "wait_window": 3.9e-6, "gather": 0.1e-6}
GATHERING = {"batch": 1e-6, "gather": 0.9e-6}
DEQUEUING = {"draw": 1e-6, "dequeue": 2e-6}


def path(key, rate_s, **changed):
    """A path that gives so much, measured three times."""
    is_warm = key in (TENSORS, DEDUPLICATED, LARGER)
    made = PathResult(
        key=key,
        name=NAMES[key],
        how="" if key in (RAM, SHARED, SUPPLY) else f"Loader(dataset, {key}=1)",
        rates=(0.99 * rate_s, rate_s, 1.01 * rate_s),
        num_rounds=3,
        batch_size=4 * BATCH if key == LARGER else BATCH,
        has_step=key != SUPPLY,
        stages={} if key in (RAM, SHARED) else DEQUEUING if key == ARROW else GATHERING if is_warm else BUILDING,
        build_share=0.9,
        stall=0.95,
        cores_used=0.5,
    )
    return dataclasses.replace(made, **changed)


def numbers(rates, **changed):
    """What was measured where paths gave these rates; the first of them is today's."""
    today = next(key for key in rates if key in (SOURCE, TENSORS))
    made = Measurements(
        data=DataFacts(
            text="s3://lake/ranking/", num_samples=10**9, num_files=500, num_chunks=8_000, num_probed=16,
            source_bytes=180.0, arrow_bytes=950.0, tensor_bytes=1_050.0, is_remote=True, repeated_share=0.4,
            widest_column="history", widest_share=0.3,
        ),
        step="train.py:step" if RAM in rates else "",
        batch_size=BATCH,
        today=today,
        paths=tuple(path(key, rate) if isinstance(rate, int | float) else rate for key, rate in rates.items()),
        stages=(
            StageResult(key="fetch", supply_s=220_000.0),
            StageResult(key="decode", supply_s=2e6, seconds=1e-6),
        ),
        ceilings={"network": 40e6, "connection": 20e6, "latency": 0.06},
        cores=8.0,
        num_threads=8,
        gpu_note="no GPU here",
        machine={"processor": "a processor", "memory": "64 GiB"},
        versions={"stoker": "0.1.0"},
        command="stoker doctor s3://lake/ranking/ --step train.py:step",
        wall_s=58.0,
        when="2026-11-27",
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def starved(**changed):
    """Fetch starves the step; tensors on SSD feed it."""
    rates = {SOURCE: 218_000, RAM: 1_000_000, SUPPLY: 219_000, TENSORS: 990_000, ARROW: 400_000}
    return numbers(rates, **changed)


def fed(**changed):
    """The model is the limit."""
    return numbers({TENSORS: 998_000, RAM: 1_000_000, SUPPLY: 4_700_000, ARROW: 400_000}, stages=(), **changed)


def shared(**changed):
    """The step and the loader want the same cores."""
    return numbers({TENSORS: 640_000, RAM: 1_000_000, SHARED: 650_000, SUPPLY: 3_000_000}, stages=(), **changed)


def without_step(**changed):
    """Nobody said what eats."""
    return numbers({SOURCE: 218_000, TENSORS: 4_700_000, ARROW: 400_000}, **changed)


GPU = {
    "name": "A100", "utilisation": 0.17, "sm_clock_mhz": 1_200.0, "max_sm_clock_mhz": 1_410.0, "power_w": 95.0,
    "power_limit_w": 400.0, "memory_used_bytes": 10e9, "memory_bytes": 40e9, "throttled": ("power limit",),
}  # fmt: skip

RATES = st.floats(1e-3, 1e12, allow_nan=False)


@st.composite
def any_path(draw, key):
    """A path with any rate, spread, waits, neighbours."""
    changed = {
        "rates": draw(st.tuples(RATES, RATES, RATES)),
        "num_rounds": draw(st.integers(1, 6)),
        "came_s": draw(st.none() | RATES),
        "stall": draw(st.floats(0, 1)),
        "cores_used": draw(st.floats(0, 9)),
        "others": draw(st.floats(0, 1)),
        "stages": draw(
            st.dictionaries(
                st.sampled_from([*BUILDING, "augment", "open", "copy", *(DEQUEUING if key == ARROW else [])]),
                st.floats(0, 1),
                max_size=8,
            )
        ),
        "build_share": draw(st.floats(0, 1)),
    }
    if draw(st.booleans()):
        changed["disk_s"] = draw(st.floats(1e-3, 1e10))
    return dataclasses.replace(path(key, 1.0), **changed)


@st.composite
def any_numbers(draw):
    """Whatever may be measured, likely or not."""
    today = draw(st.sampled_from([SOURCE, TENSORS]))
    keys = [today, *draw(st.sets(st.sampled_from([key for key in NAMES if key != today])))]
    rates = {key: draw(any_path(key)) for key in keys}
    made = numbers(rates)
    return dataclasses.replace(
        made,
        is_given=draw(st.booleans()),
        stages=tuple(dataclasses.replace(stage, supply_s=draw(RATES)) for stage in made.stages),
        gpus=draw(st.sampled_from([(), (GPU,)])),
        gpu_hour=draw(st.none() | st.floats(0, 100)),
        num_gpus=draw(st.integers(1, 1_000)),
        interrupted=draw(st.sampled_from(["", "tensors on SSD"])),
    )
