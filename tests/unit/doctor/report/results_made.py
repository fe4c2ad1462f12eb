"""Results that nobody measured: by hand for what a test looks at, by hypothesis for all that a result may be."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from stoker.doctor import results as r

BATCH = 4_096
STEP_S = 0.004_096
DEMAND = BATCH / STEP_S

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> \"'&amp; $x^{2}$ \x00\x1b[31m \ud800 \u202e 名"
"""A name that tries what names can try."""


def rate(samples_s: float, spread: float = 0.05, num_rounds: int = 3) -> r.Rate:
    return r.Rate(
        samples_s=samples_s, low=samples_s * (1 - spread), high=samples_s * (1 + spread), num_rounds=num_rounds
    )


def stage(key: str, name: str, samples_s: float, *paths: str) -> r.StageResult:
    return r.StageResult(
        key=key,
        name=name,
        paths=paths or ("source",),
        supply=rate(samples_s),
        headroom=samples_s / DEMAND,
        cpu_s=1.5e-6,
        gil_s=0.2e-6,
        wait_s=1e-6,
        size_bytes=997.0,
        threads=(r.Concurrency(num_threads=1, samples_s=samples_s), r.Concurrency(num_threads=4, samples_s=samples_s)),
        note=f"note on {key}",
    )


def parts(*waits: tuple[str, str, float]) -> tuple[r.StepPart, ...]:
    return (
        r.StepPart(key="step", name="training step", seconds=STEP_S),
        *(r.StepPart(key=key, name=f"waits for {name}", seconds=seconds) for key, name, seconds in waits),
    )


def path(key: str, samples_s: float, limit: str, *, step_parts: tuple[r.StepPart, ...], today: bool) -> r.PathResult:
    return r.PathResult(
        key=key,
        name={"source": "every epoch from the source", "arrow": "Arrow on SSD", "tensors": "tensors on SSD"}[key],
        is_today=today,
        supply_s=samples_s,
        predicted_s=min(samples_s, DEMAND),
        measured=rate(samples_s * 0.97),
        limit=limit,
        next_limit="step",
        bounds=(r.Bound(resource="network", name="network", samples_s=samples_s, stages=("fetch", "decode")),),
        busy=min(1.0, samples_s / DEMAND),
        step_parts=step_parts,
        epoch_s=1e9 / min(samples_s, DEMAND),
        disk_bytes=1e12,
    )


def spans() -> tuple[r.RunSpan, ...]:
    """One window: two threads fetch and decode, then its batches are eaten."""
    found = []
    for i in range(2):
        found += [
            r.RunSpan(track=f"build {i + 1}", stage="fetch", start_s=0.1 * i, stop_s=0.5 + 0.1 * i),
            r.RunSpan(track=f"build {i + 1}", stage="decode", start_s=0.5 + 0.1 * i, stop_s=0.6 + 0.1 * i),
        ]
    found.append(r.RunSpan(track="loop", stage="wait", start_s=0.0, stop_s=0.7))
    found += [r.RunSpan(track="step", stage="step", start_s=0.7 + 0.01 * i, stop_s=0.705 + 0.01 * i) for i in range(30)]
    return tuple(found)


def data_bound() -> r.DoctorResult:
    """Return a fetch-bound path, everything measured."""
    fetched = 210_000.0
    return r.DoctorResult(
        data=r.DataFacts(
            text="s3://lake/ranking/2026-11/",
            num_samples=1_000_000_000,
            num_files=1_600,
            num_chunks=32_000,
            num_probed=16,
            source_bytes=174.0,
            arrow_bytes=997.0,
            tensor_bytes=1_055.0,
            is_remote=True,
            repeated_share=0.72,
            repeated_columns=("query_id", "country", "embedding"),
            widest_column="embedding",
            widest_share=0.16,
        ),
        step=r.StepFacts(
            text="train.py:step, a real function",
            batch_size=BATCH,
            step_s=STEP_S,
            demand=rate(DEMAND, 0.01),
            is_given=False,
            host_s=0.0002,
            cpu_s=0.0003,
        ),
        verdict=r.Verdict(
            sentence="Fetch (the network is full) starves the step (certain): 210,000 samples/s come where it could "
            "eat 1 M, so it stands idle 79 % of the time, 15.4 ms at each step of 4.1 ms.",
            stages=("fetch",),
            sureness=0.998,
            sure="certain",
            lost_share=0.79,
            then="Once that is mended, decode Parquet limits, at 624,000 samples/s (3.0 times today's).",
            story=(
                "today, every epoch from the source: 210,000 samples/s: fetch is the limit",
                "with Arrow on SSD: 736,000 samples/s: conversion is the limit",
                "with tensors on SSD: 1 M samples/s, the step busy 100 %: the model is the limit",
            ),
        ),
        stages=(
            stage("fetch", "fetch", fetched),
            stage("decode", "decode Parquet", 1_250_000),
            stage("transform", "transform", 4_000_000),
            stage("publish", "pack and publish", 864_000),
            stage("draw", "conversion: drawing rows from Arrow", 736_000, "arrow"),
            stage("gather", "gather", 5_020_000, "source", "tensors"),
            stage("copy", "copy to the GPU", 22_000_000, "source", "arrow", "tensors"),
            dataclasses.replace(stage("step", "training step", DEMAND, "source", "arrow", "tensors"), headroom=None),
        ),
        paths=(
            path("source", fetched, "fetch", step_parts=parts(("fetch", "fetch", 0.015_4)), today=True),
            path("arrow", 736_000, "draw", step_parts=parts(("draw", "conversion", 0.001_47)), today=False),
            path("tensors", 5e6, "step", step_parts=parts(), today=False),
        ),
        ram=rate(DEMAND * 0.999),
        fixes=(
            fix("tensors", "keep tensors on SSD", "Loader(cache=DIR), or stoker warm", 1e6, "step"),
            fix("arrow", "keep Arrow on SSD", "a cache of decoded tables", 736_000, "draw"),
            fix("threads", "8 threads instead of 2", "num_threads=8", 290_000, "fetch"),
            fix("columns", "do without embedding (16% of the bytes)", "Dataset(columns=[...])", 250_000, "fetch"),
        ),
        ceilings=(
            r.Ceiling(
                key="network", name="network", value=36.2e6, unit="bytes/s", used=0.98, note="the best of 1, 2, 4"
            ),
            r.Ceiling(key="latency", name="latency", value=0.06, unit="s", note="of one fetch"),
            r.Ceiling(key="cores", name="cores", value=8.0, unit="cores", used=0.34),
            r.Ceiling(key="disk_read", name="disk, reading", value=3.2e9, unit="bytes/s", note="sequential"),
            r.Ceiling(key="pcie_pinned", name="PCIe, pinned", value=24e9, unit="bytes/s", used=0.01),
        ),
        sweep=r.BatchSweep(
            points=tuple(
                r.BatchPoint(batch_size=2**i, loader_s=6e6 * 2**i / (2**i + 400), step_s=1.3e6 * 2**i / (2**i + 900))
                for i in range(8, 17)
            ),
            loader_knee=8_192,
            step_knee=16_384,
        ),
        materialise=(
            r.Materialise(key="arrow", name="Arrow on SSD", disk_bytes=9.9e11, extra_s=60, saved_s=5e3, pays_after=1),
            r.Materialise(key="tensors", name="tensors", disk_bytes=1.05e12, extra_s=90, saved_s=0, pays_after=None),
        ),
        money=r.Money(
            gpu_hour=2.5,
            num_gpus=8,
            epoch=26.4,
            stalls=20.9,
            parts=(
                r.MoneyPart(key="step", name="training step", cost=5.5),
                r.MoneyPart(key="fetch", name="waits for fetch", cost=20.9),
            ),
            best_fix=5.5,
        ),
        gpus=(
            r.GpuFacts(
                name="NVIDIA H200",
                utilisation=0.97,
                sm_activity=None,
                sm_clock_mhz=1_755.0,
                max_sm_clock_mhz=1_980.0,
                power_w=412.0,
                power_limit_w=700.0,
                memory_used_bytes=41e9,
                memory_bytes=150e9,
                throttled=("power limit",),
            ),
        ),
        gpu_note="GPU utilisation is the share of time in which at least one kernel ran; SM activity is another thing.",
        verified=r.Verified(
            fix="tensors", text="keep tensors on SSD", predicted_s=1e6, measured=rate(0.96e6, num_rounds=5)
        ),
        timeline=spans(),
        machine={"processor": "AMD EPYC 9654", "cores": "8", "memory": "64 GiB", "system": "Linux x86_64"},
        versions={"python": "3.12.4", "stoker": "0.1.0", "numpy": "2.4.6", "torch": "2.13.0"},
        command="stoker doctor train.py:dataset --step train.py:step --device cuda --verify --gpu-hour 2.50",
        budget_s=60.0,
        wall_s=58.2,
        when="2026-11-21",
        notes=("Others use this machine: 6.1 of 8 cores were left.",),
    )


def fix(key: str, text: str, how: str, predicted_s: float, limit: str) -> r.Fix:
    return r.Fix(
        key=key,
        text=text,
        how=how,
        predicted_s=predicted_s,
        times=predicted_s / 210_000,
        limit=limit,
        busy=predicted_s / DEMAND,
    )


def two_causes() -> r.DoctorResult:
    """Return a path on which fetching hides a slow transform."""
    result = data_bound()
    today = dataclasses.replace(
        result.today,
        step_parts=parts(("fetch", "fetch", 0.009), ("transform", "transform", 0.006), ("publish", "packing", 0.0004)),
    )
    verdict = dataclasses.replace(
        result.verdict,
        sentence="Fetch (the network is full) starves the step (likely), and hides transform behind it: 210,000 "
        "samples/s come where it could eat 1 M.",
        stages=("fetch", "transform"),
        sureness=0.81,
        sure="likely",
    )
    stages = tuple(stage("transform", "transform", 330_000) if s.key == "transform" else s for s in result.stages)
    return dataclasses.replace(result, verdict=verdict, stages=stages, paths=(today, *result.paths[1:]))


def model_bound() -> r.DoctorResult:
    """Return a path that feeds its step."""
    result = data_bound()
    today = dataclasses.replace(result.paths[2], is_today=True)
    verdict = r.Verdict(
        sentence="The model is the limit, and there is nothing to gain: the loader could feed 5.0 times the 1 M "
        "samples/s that the step eats.",
        stages=("step",),
        sureness=1.0,
        sure="certain",
        lost_share=0.0,
        story=("today, tensors on SSD: 1 M samples/s, the step busy 100 %: the model is the limit",),
    )
    return dataclasses.replace(
        result,
        verdict=verdict,
        stages=tuple(one for one in result.stages if "tensors" in one.paths),
        paths=(today,),
        fixes=(),
        materialise=(),
        money=None,
        verified=None,
        notes=(),
    )


def without_step() -> r.DoctorResult:
    """Return what is known where no step was given: supply, and no demand."""
    result = data_bound()
    verdict = r.Verdict(
        sentence="Fetch (the network is full) is what limits (certain): 210,000 samples/s can come, enough for steps "
        "of 19.5 ms or longer with batches of 4,096. Give --step-time or --step to know whether that is too little.",
        stages=("fetch",),
        sureness=1.0,
        sure="certain",
        lost_share=None,
    )
    return dataclasses.replace(
        result,
        step=None,
        verdict=verdict,
        stages=tuple(dataclasses.replace(one, headroom=None) for one in result.stages if one.key != "step"),
        paths=tuple(dataclasses.replace(one, busy=None, step_parts=()) for one in result.paths),
        ram=None,
        fixes=tuple(dataclasses.replace(one, busy=None) for one in result.fixes),
        sweep=r.BatchSweep(
            points=tuple(dataclasses.replace(point, step_s=None) for point in result.sweep.points),
            loader_knee=65_536,
            step_knee=None,
        )
        if result.sweep
        else None,
        money=None,
        gpus=(),
        gpu_note="no GPU here",
        verified=None,
    )


def renamed(result: r.DoctorResult, name: str) -> r.DoctorResult:
    """Return the result with `name` in every place where a text comes from outside."""
    return dataclasses.replace(
        result,
        data=dataclasses.replace(result.data, text=name, repeated_columns=(name, name), widest_column=name),
        step=None if result.step is None else dataclasses.replace(result.step, text=name),
        verdict=dataclasses.replace(
            result.verdict, sentence=f"{name} starves the step", then=name, story=(name,), notes=(name,)
        ),
        stages=tuple(dataclasses.replace(one, name=f"{one.key} {name}", note=name) for one in result.stages),
        paths=tuple(
            dataclasses.replace(
                one,
                name=name,
                step_parts=tuple(dataclasses.replace(part, name=name) for part in one.step_parts),
                bounds=tuple(dataclasses.replace(bound, name=name) for bound in one.bounds),
            )
            for one in result.paths
        ),
        fixes=tuple(dataclasses.replace(one, text=f"do without {name}", how=name) for one in result.fixes),
        ceilings=tuple(dataclasses.replace(one, name=name, note=name) for one in result.ceilings),
        materialise=tuple(dataclasses.replace(one, name=name) for one in result.materialise),
        money=None
        if result.money is None
        else dataclasses.replace(
            result.money, parts=tuple(dataclasses.replace(part, name=name) for part in result.money.parts)
        ),
        gpus=tuple(dataclasses.replace(one, name=name, throttled=(name,)) for one in result.gpus),
        gpu_note=name,
        verified=None if result.verified is None else dataclasses.replace(result.verified, text=name),
        timeline=tuple(dataclasses.replace(one, track=f"{one.track} {name}") for one in result.timeline),
        machine={name: name},
        versions={name: name},
        command=name,
        notes=(name,),
    )


_counts = st.integers(0, 10**12)
_amounts = st.one_of(st.just(0.0), st.floats(1e-9, 1e13), st.just(float("inf")))
_shares = st.floats(0.0, 1.0)
_rates = st.builds(
    lambda middle, low, high: r.Rate(samples_s=middle, low=middle * low, high=middle * high),
    st.one_of(st.just(0.0), st.floats(1e-6, 1e12)),
    st.floats(0.0, 1.0),
    st.floats(1.0, 3.0),
)
_keys = st.sampled_from(["fetch", "decode", "transform", "publish", "draw", "gather", "copy", "skew", "step", "new"])
_words = st.one_of(st.sampled_from([HOSTILE, "", "fetch", "x" * 300]), st.text(max_size=40))


def _few(strategy: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, max_size=most).map(tuple)


def _maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


_stages = st.builds(
    r.StageResult,
    key=_keys,
    name=_words,
    paths=st.sampled_from([("source",), ("arrow",), ("source", "tensors"), ()]),
    supply=_rates,
    headroom=_maybe(_amounts),
    cpu_s=_amounts,
    gil_s=_amounts,
    wait_s=_amounts,
    size_bytes=_amounts,
    threads=_few(st.builds(r.Concurrency, num_threads=st.integers(1, 64), samples_s=_amounts)),
    note=_words,
)
_parts = st.builds(r.StepPart, key=_keys, name=_words, seconds=st.floats(0, 1e4))
_bounds = st.builds(r.Bound, resource=_words, name=_words, samples_s=_amounts, stages=_few(_keys))
_verdicts = st.builds(
    r.Verdict,
    sentence=_words,
    stages=_few(_keys, 2),
    sureness=_shares,
    sure=st.sampled_from(["certain", "likely", "a guess"]),
    lost_share=_maybe(_shares),
    then=_words,
    story=_few(_words),
    notes=_few(_words),
)
_fixes = st.builds(
    r.Fix,
    key=st.sampled_from(["tensors", "arrow", "threads", "columns", "batch", "cores"]),
    text=_words,
    how=_words,
    predicted_s=_amounts,
    times=_amounts,
    limit=_keys,
    busy=_maybe(_shares),
    measured=_maybe(_rates),
)
_points = st.builds(
    r.BatchPoint, batch_size=st.integers(1, 10**7), loader_s=_amounts, step_s=_maybe(_amounts)
)  # fmt: skip
_verified = st.builds(r.Verified, fix=st.just("tensors"), text=_words, predicted_s=_amounts, measured=_rates)
_spans = st.builds(
    lambda track, stage, start, length: r.RunSpan(track=track, stage=stage, start_s=start, stop_s=start + length),
    st.one_of(st.sampled_from(["build 1", "build 2", "loop", "step"]), _words),
    _keys | st.just("wait"),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)


@st.composite
def _paths(draw: st.DrawFn) -> tuple[r.PathResult, ...]:
    keys = draw(st.lists(st.sampled_from(["source", "arrow", "tensors"]), min_size=1, max_size=3, unique=True))
    today = draw(st.sampled_from(keys))
    return tuple(
        r.PathResult(
            key=key,
            name=draw(_words),
            is_today=key == today,
            supply_s=draw(_amounts),
            predicted_s=draw(_amounts),
            measured=draw(_maybe(_rates)),
            limit=draw(_keys | st.just("")),
            next_limit=draw(_keys | st.just("")),
            bounds=draw(_few(_bounds)),
            busy=draw(_maybe(_shares)),
            step_parts=draw(_few(_parts)),
            epoch_s=draw(_amounts),
        )
        for key in keys
    )


results = st.builds(
    r.DoctorResult,
    data=st.builds(
        r.DataFacts,
        text=_words,
        num_samples=_counts,
        num_files=_counts,
        num_chunks=_counts,
        num_probed=_counts,
        source_bytes=_amounts,
        arrow_bytes=_amounts,
        tensor_bytes=_amounts,
        is_remote=st.booleans(),
        repeated_share=_maybe(_shares),
        repeated_columns=_few(_words, 40),
        widest_column=_words,
        widest_share=_shares,
    ),
    step=_maybe(
        st.builds(
            r.StepFacts,
            text=_words,
            batch_size=st.integers(1, 10**6),
            step_s=_amounts,
            demand=_rates,
            is_given=st.booleans(),
        )
    ),
    verdict=_verdicts,
    stages=_few(_stages, 6),
    paths=_paths(),
    ram=_maybe(_rates),
    fixes=_few(_fixes, 4),
    ceilings=_few(
        st.builds(
            r.Ceiling,
            key=_words,
            name=_words,
            value=_amounts,
            unit=st.sampled_from(["bytes/s", "s", "cores"]),
            used=_maybe(_amounts),
            note=_words,
        )
    ),
    sweep=_maybe(
        st.lists(_points, min_size=1, max_size=4, unique_by=lambda point: point.batch_size).map(
            lambda points: r.BatchSweep(
                points=tuple(sorted(points, key=lambda point: point.batch_size)),
                loader_knee=points[0].batch_size,
                step_knee=None if points[0].step_s is None else points[0].batch_size,
            )
        )
    ),
    materialise=_few(
        st.builds(
            r.Materialise,
            key=_words,
            name=_words,
            disk_bytes=_amounts,
            extra_s=_amounts,
            saved_s=_amounts,
            pays_after=_maybe(st.integers(1, 10**6)),
        )
    ),
    money=_maybe(
        st.builds(
            r.Money,
            gpu_hour=st.floats(0, 1e3),
            num_gpus=st.integers(1, 1000),
            epoch=_amounts,
            stalls=_amounts,
            parts=_few(st.builds(r.MoneyPart, key=_keys, name=_words, cost=st.floats(0, 1e6))),
            best_fix=_amounts,
        )
    ),
    gpus=_few(
        st.builds(
            r.GpuFacts,
            name=_words,
            utilisation=_maybe(_shares),
            sm_activity=_maybe(_shares),
            sm_clock_mhz=_maybe(_amounts),
            max_sm_clock_mhz=_maybe(_amounts),
            power_w=_maybe(_amounts),
            power_limit_w=_maybe(_amounts),
            memory_used_bytes=_maybe(_amounts),
            memory_bytes=_maybe(_amounts),
            throttled=_few(_words),
        )
    ),
    gpu_note=_words,
    verified=_maybe(_verified),
    timeline=_few(_spans, 8),
    machine=st.dictionaries(_words, _words, max_size=3),
    versions=st.dictionaries(_words, _words, max_size=3),
    command=_words,
    budget_s=_amounts,
    wall_s=_amounts,
    when=_words,
    notes=_few(_words),
    tried=_few(_verified),
)
"""Any result: every optional part there or not, rates of nothing and without limit, and names of all kinds."""
