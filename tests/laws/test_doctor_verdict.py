"""The verdict names what was planted: by numbers, hundreds of times, and in a table of known faults."""

import dataclasses
import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.doctor.plans_made import (
    BATCH,
    CHUNK,
    DEMAND,
    arrow_plan,
    changed,
    on,
    source_plan,
    step_cost,
    tensors_plan,
)

from stoker.doctor.bounds import bounds_of, demand_of, supply_of
from stoker.doctor.builders import with_crew, with_fewer
from stoker.doctor.causes import KEEPS_UP, SKEW, causes_of, limit_of, step_parts
from stoker.doctor.costs import StageCost
from stoker.doctor.diagnose import diagnose
from stoker.doctor.flow import rate_of
from stoker.doctor.whatif import faster_network, more_cores
from stoker.loader.windows.in_use import num_windows_ahead

# Name -> (the plan, the stages that its verdict must name). One cause each, then two at once.
SINGLE = {
    "throttled network": (on(source_plan(), network_bytes_s=40e6, connection_bytes_s=40e6), "fetch"),
    "each connection throttled": (on(source_plan(), connection_bytes_s=2e6), "fetch"),
    "high latency": (source_plan(fetch=changed("fetch", wait_s=3.0 / CHUNK)), "fetch"),
    "a client that computes": (source_plan(fetch=changed("fetch", cpu_s=40e-6)), "fetch"),
    "many bytes a sample": (source_plan(fetch=changed("fetch", net_bytes=20_000.0)), "fetch"),
    "slow decode": (source_plan(decode=changed("decode", cpu_s=30e-6)), "decode"),
    "decode with the GIL": (source_plan(decode=changed("decode", cpu_s=4e-6, gil_s=4e-6)), "decode"),
    "transform with the GIL": (source_plan(transform=changed("transform", cpu_s=3e-6, gil_s=3e-6)), "transform"),
    "transform without the GIL": (source_plan(transform=changed("transform", cpu_s=25e-6, gil_s=0.0)), "transform"),
    "transform half with the GIL": (source_plan(transform=changed("transform", cpu_s=6e-6, gil_s=3e-6)), "transform"),
    "transform that waits for a service": (
        source_plan(transform=changed("transform", wait_s=60e-6)),
        "transform",
    ),
    "slow conversion": (source_plan(convert=changed("convert", cpu_s=20e-6)), "convert"),
    "conversion through Python objects": (source_plan(convert=changed("convert", cpu_s=9e-6, gil_s=9e-6)), "convert"),
    "slow packing": (source_plan(publish=changed("publish", cpu_s=20e-6)), "publish"),
    "slow cache disk, writing": (
        on(source_plan(publish=changed("publish", write_bytes=1_000.0)), write_bytes_s=100e6),
        "publish",
    ),
    "slow local disk": (
        on(source_plan(fetch=changed("fetch", net_bytes=0.0, wait_s=0.0, read_bytes=180.0)), read_bytes_s=50e6),
        "fetch",
    ),
    "few cores, much to decode": (on(source_plan(decode=changed("decode", cpu_s=4e-6)), cores=1.0), "decode"),
    "one thread": (
        dataclasses.replace(source_plan(decode=changed("decode", cpu_s=3e-6)), num_builders=1),
        "decode",
    ),
    "slow gather": (tensors_plan(gather=changed("gather", cpu_s=20e-6)), "gather"),
    "gather with the GIL": (tensors_plan(gather=changed("gather", cpu_s=3e-6, gil_s=3e-6)), "gather"),
    "small batches": (
        dataclasses.replace(
            tensors_plan(batch=changed("batch", cpu_s=100e-6 / 16, gil_s=60e-6 / 16)), batch_size=16
        ),
        "batch",
    ),
    "small batches from the source": (
        dataclasses.replace(source_plan(batch=changed("batch", cpu_s=100e-6 / 8, gil_s=80e-6 / 8)), batch_size=8),
        "batch",
    ),
    "slow SSD under the cache": (
        on(
            tensors_plan(open=dataclasses.replace(tensors_plan().stages[3], read_bytes=1_000.0)),
            read_bytes_s=200e6,
        ),
        "open",
    ),
    "memory that gives no more": (
        on(tensors_plan(gather=changed("gather", memory_bytes=1_000.0)), memory_bytes_s=400e6),
        "gather",
    ),
    "slow copy": (on(tensors_plan(), pcie_bytes_s=300e6), "copy"),
    "Arrow made arrays at each dequeue": (arrow_plan(), "dequeue"),
    "rows drawn in Arrow": (
        arrow_plan(
            draw=dataclasses.replace(arrow_plan().stages[1], cpu_s=20e-6),
            dequeue=dataclasses.replace(arrow_plan().stages[2], cpu_s=0.1e-6, gil_s=0.0),
        ),
        "draw",
    ),
    "slow disk under Arrow": (
        on(
            arrow_plan(read=dataclasses.replace(arrow_plan().stages[0], read_bytes=1_000.0)), read_bytes_s=300e6
        ),
        "read",
    ),
    "skewed file sizes": (
        dataclasses.replace(
            source_plan(decode=changed("decode", cpu_s=4e-6), step=step_cost(3e6)),
            chunk_samples=(4_096,) * 31 + (3_000_000,),
        ),
        SKEW,
    ),
    "slow step": (source_plan(step=step_cost(50_000.0)), "step"),
    "slow step, warm": (tensors_plan(step=step_cost(50_000.0)), "step"),
    "a step that computes on all cores": (
        tensors_plan(step=dataclasses.replace(step_cost(40_000.0), cpu_s=8 / 40_000.0, host_s=1 / 40_000.0)),
        "step",
    ),
}  # fmt: skip

DOUBLE = {
    "throttled network, slow decode": (
        on(source_plan(decode=changed("decode", cpu_s=30e-6)), network_bytes_s=30e6),
        {"fetch", "decode"},
    ),
    "throttled network hides a GIL transform": (
        on(source_plan(transform=changed("transform", cpu_s=4e-6, gil_s=4e-6)), network_bytes_s=20e6),
        {"fetch", "transform"},
    ),
    "high latency, slow conversion": (
        source_plan(fetch=changed("fetch", wait_s=5.0 / CHUNK), convert=changed("convert", cpu_s=20e-6)),
        {"fetch", "convert"},
    ),
    "slow decode, GIL transform": (
        source_plan(decode=changed("decode", cpu_s=25e-6), transform=changed("transform", cpu_s=3e-6, gil_s=3e-6)),
        {"decode", "transform"},
    ),
    "two that share the cores": (
        source_plan(decode=changed("decode", cpu_s=14e-6), publish=changed("publish", cpu_s=12e-6)),
        {"decode", "publish"},
    ),
    "slow gather, small batches": (
        dataclasses.replace(
            tensors_plan(
                gather=changed("gather", cpu_s=9e-6),
                batch=changed("batch", cpu_s=60e-6 / 16, gil_s=60e-6 / 16),
            ),
            batch_size=16,
        ),
        {"gather", "batch"},
    ),
    "slow gather, slow copy": (
        on(tensors_plan(gather=changed("gather", cpu_s=12e-6)), pcie_bytes_s=400e6),
        {"gather", "copy"},
    ),
}


def verdict(plan):
    return diagnose({plan.path: plan}, today=plan.path)


def test_there_are_at_least_24_planted_faults():
    assert len(SINGLE) + len(DOUBLE) >= 24


@pytest.mark.parametrize("name", SINGLE)
def test_the_planted_stage_is_named_first(name):
    plan, key = SINGLE[name]
    assert verdict(plan).stages[0] == key


@pytest.mark.parametrize("name", DOUBLE)
def test_both_planted_stages_are_named(name):
    plan, keys = DOUBLE[name]
    assert set(verdict(plan).stages) == keys


@pytest.mark.parametrize("plan", [source_plan(), tensors_plan()])
def test_a_healthy_path_is_told_that_there_is_nothing_to_gain(plan):
    found = verdict(plan)
    assert found.stages == ("step",)
    assert "nothing to gain" in found.sentence
    assert found.lost_share < 1 - KEEPS_UP


# What of each stage can be made so dear that it alone limits: its number, and the resource's capacity.
_PLANTS = {
    ("fetch", "net_bytes"): 1.2e9,
    ("decode", "cpu_s"): 8.0,
    ("decode", "gil_s"): 1.0,
    ("transform", "cpu_s"): 8.0,
    ("transform", "gil_s"): 1.0,
    ("convert", "cpu_s"): 8.0,
    ("convert", "gil_s"): 1.0,
    ("publish", "cpu_s"): 8.0,
    ("publish", "write_bytes"): 2e9,
}


@settings(max_examples=60)
@given(
    plant=st.sampled_from(sorted(_PLANTS)),
    slow=st.floats(2.0, 200.0),
    scale=st.lists(st.floats(0.3, 1.5), min_size=5, max_size=5),
)
def test_whatever_else_varies_the_stage_that_was_made_dear_is_named(plant, slow, scale):
    key, attribute = plant
    stages = {
        name: changed(name).scaled(factor)
        for name, factor in zip(("fetch", "decode", "transform", "convert", "publish"), scale, strict=True)
    }
    dear = _PLANTS[plant] / (DEMAND / slow)
    stages[key] = dataclasses.replace(stages[key], **{attribute: dear})
    found = verdict(source_plan(**stages))
    assert found.stages[0] == key
    assert found.lost_share == pytest.approx(1 - 1 / slow, abs=0.12)


@settings(max_examples=40)
@given(
    plants=st.sampled_from([pair for pair in itertools.combinations(sorted(_PLANTS), 2) if pair[0][0] != pair[1][0]]),
    first=st.floats(3.0, 50.0),
    second=st.floats(3.0, 50.0),
)
def test_two_stages_that_both_starve_the_step_are_both_named(plants, first, second):
    plan = source_plan()
    for (key, attribute), slow in zip(plants, (first, second), strict=True):
        plan = plan.with_stage(
            dataclasses.replace(plan.stage(key), **{attribute: _PLANTS[(key, attribute)] / (DEMAND / slow)})
        )
    assert set(verdict(plan).stages) == {key for key, _ in plants}


@settings(max_examples=40)
@given(
    cpu=st.lists(st.floats(0.0, 20e-6), min_size=5, max_size=5),
    gil=st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
    bandwidth=st.floats(1e6, 1e10),
    latency=st.floats(0.0, 2.0),
    builders=st.integers(1, 40),
    demand=st.floats(1e3, 1e8),
    sizes=st.lists(st.integers(1_000, 200_000), min_size=1, max_size=12),
)
def test_no_rate_is_above_a_bound_and_mending_never_makes_slower(cpu, gil, bandwidth, latency, builders, demand, sizes):
    names = ("fetch", "decode", "transform", "convert", "publish")
    stages = {
        name: changed(name, cpu_s=seconds, gil_s=seconds * share)
        for name, seconds, share in zip(names, cpu, gil, strict=True)
    }
    stages["fetch"] = dataclasses.replace(stages["fetch"], wait_s=latency / CHUNK)
    plan = on(source_plan(**stages, step=step_cost(demand)), network_bytes_s=bandwidth)
    plan = dataclasses.replace(plan, num_builders=builders, chunk_samples=tuple(sizes))
    rate = rate_of(plan)
    assert 0 < rate <= bounds_of(plan)[0].samples_s * (1 + 1e-9)
    assert rate <= demand_of(plan) * (1 + 1e-9)
    causes = causes_of(plan)
    assert [cause.key for cause in causes] == list(dict.fromkeys(cause.key for cause in causes))
    for cause in causes:
        # Which chunk a thread takes next depends on how long the one before took: so little may be lost by chance.
        assert cause.mended >= cause.rate * 0.9
    parts = step_parts(plan)
    assert all(part.seconds >= 0 for part in parts)
    if all(cause.mended >= cause.rate for cause in causes):
        assert sum(part.seconds for part in parts) == pytest.approx(plan.batch_size / rate, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    window=st.integers(1, 40),
    few=st.integers(1, 40),
    seconds=st.floats(0.05, 3.0),
)
def test_what_takes_long_to_come_gives_no_more_than_the_windows_that_wait_for_it(window, few, seconds):
    """A chunk is begun some windows ahead, and takes so long: one more than these in that time, and none earlier."""
    fetch = changed("fetch", cpu_s=0.0, net_bytes=1e-6, wait_s=seconds / CHUNK)
    plan = source_plan(fetch=fetch, step=step_cost(1e9))
    plan = dataclasses.replace(plan, num_builders=few * window, window=window)
    num_windows = num_windows_ahead(few * window, window) + 1
    assert rate_of(plan) <= (1 + 0.03) * num_windows * window * CHUNK / seconds


def test_of_a_few_chunks_that_take_long_more_are_on_their_way_than_the_windows_of_even_ones():
    """Each window has one of fifty times the size; threads that build have nothing to do, and it is asked further."""
    window, seconds = 24, 1.0
    fetch = changed("fetch", cpu_s=0.0, net_bytes=1e-6, wait_s=seconds / CHUNK)
    plan = source_plan(fetch=fetch, step=step_cost(1e9))
    sizes = (*(CHUNK,) * (window - 1), 50 * CHUNK)
    plan = dataclasses.replace(plan, num_builders=window, window=window, chunk_samples=sizes)
    at_once = (num_windows_ahead(window, window) + 1) * sum(sizes)
    assert rate_of(plan) > 1.3 * at_once / (50 * seconds)


def test_more_cores_are_not_promised_more_memory():
    gather = changed("gather", cpu_s=1e-6, memory_bytes=1_000.0)
    plan = on(tensors_plan(gather=gather, step=step_cost(1e9)), cores=1.0, memory_bytes_s=1.2e9)
    plan = dataclasses.replace(plan, num_assemblers=1)
    assert rate_of(plan) < 1e6
    assert rate_of(more_cores(plan, num_threads=1)) == pytest.approx(1.2e6)


@pytest.mark.parametrize("cpu", [1e-12, 1e-15, 1e-18])
def test_what_takes_next_to_nothing_has_a_rate(cpu):
    plan = dataclasses.replace(
        source_plan(), stages=(StageCost(key="decode", place="build", cpu_s=cpu),), chunk_samples=(4, 5), window=2
    )
    assert 0 < rate_of(plan) <= bounds_of(plan)[0].samples_s < float("inf")


@settings(max_examples=40)
@given(cores=st.integers(1, 6), together=st.floats(0.4, 1.0), cpu=st.floats(1e-6, 50e-6))
def test_more_cores_give_more_and_never_as_many_times_more_where_threads_lose_by_each_other(cores, together, cpu):
    plan = on(source_plan(decode=changed("decode", cpu_s=cpu)), cores=float(cores), together=together)
    many = 4 * cores
    plan = dataclasses.replace(plan.without("fetch", "step"), num_builders=many, num_computing=many, window=64)
    assume(limit_of(plan) != "gather")
    now, then = rate_of(plan), rate_of(more_cores(plan, num_threads=many))
    assert now * 0.99 <= then <= now * 2.01
    if cores == 1 or together < 0.9:
        assert then < now * 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_a_second_processor_gives_no_less_however_much_holds_the_gil(share):
    plan = on(source_plan(decode=changed("decode", cpu_s=20e-6, gil_s=share * 20e-6)), cores=1.0)
    plan = dataclasses.replace(plan.without("fetch", "step"), num_builders=2, num_computing=2, window=64)
    times = rate_of(more_cores(plan, num_threads=2)) / rate_of(plan)
    assert 1 <= times < 2
    if share == 1.0:
        assert times < 1.1  # the little that does not hold it


def test_behind_a_faster_link_a_loader_comes_to_fewer_threads():
    """Chunks of 12 MB over connections of 1 MB/s: as many of them as there may be; of 100 MB/s, a few do."""
    plan = on(source_plan(step=step_cost(1e9)), connection_bytes_s=1e6)
    plan = dataclasses.replace(plan, num_builders=2, least_builders=2, most_builders=256, num_computing=2, window=256)
    slow = with_crew(plan)
    fast = faster_network(slow, times=100)
    assert slow.num_builders > fast.num_builders >= 2
    assert rate_of(fast) > rate_of(slow)
    assert faster_network(dataclasses.replace(slow, most_builders=0)).num_builders == slow.num_builders


@pytest.mark.parametrize(("num", "before"), [(64, 32), (70, 64), (16, 8), (9, 8), (8, None)])
def test_a_crew_goes_back_to_the_size_that_it_came_from(num, before):
    plan = dataclasses.replace(source_plan(), num_builders=num, least_builders=8, most_builders=num, num_computing=2)
    fewer = with_fewer(plan)
    assert (fewer and fewer.num_builders) == before
    assert with_fewer(dataclasses.replace(plan, most_builders=0)) is None
    assert with_fewer(dataclasses.replace(plan, num_computing=None)) is None


@settings(max_examples=60)
@given(demand=st.floats(1e3, 1e9))
def test_the_model_is_the_limit_exactly_where_the_supply_is_ample(demand):
    plan = tensors_plan(step=step_cost(demand))
    supply = supply_of(plan)
    assume(not 0.95 < supply / demand < 1.3)
    assert (limit_of(plan) == "step") == (supply > demand)


def test_what_the_paths_tell_is_the_story_of_the_team():
    slow = on(source_plan(), network_bytes_s=40e6, connection_bytes_s=40e6)
    found = diagnose({"source": slow, "arrow": arrow_plan(), "tensors": tensors_plan()}, today="source")
    first, second, third = found.story
    assert first.startswith("today")
    assert "fetch is the limit" in first
    assert "Arrow on SSD" in second
    assert "conversion" in second
    assert "tensors on SSD" in third
    assert "the model is the limit" in third


def test_the_sentence_says_which_stage_how_sure_and_what_it_costs():
    plan, _ = SINGLE["throttled network"]
    sentence = verdict(plan).sentence
    assert sentence.startswith("Fetch (the network is full) starves the step (certain)")
    assert "idle 78 % of the time" in sentence
    assert f"{BATCH / DEMAND * 1e3:.3g} ms" in sentence


def test_measurements_that_lie_far_apart_make_the_verdict_less_sure():
    near = {"decode": changed("decode", cpu_s=14e-6), "publish": changed("publish", cpu_s=12e-6)}
    sharp = verdict(source_plan(**near))
    blurred = verdict(source_plan(**{key: dataclasses.replace(cost, spread=2.0) for key, cost in near.items()}))
    assert blurred.sureness < sharp.sureness
    assert blurred.sure in ("likely", "a guess")


@pytest.mark.parametrize(("worth", "words"), [(None, "too few threads"), (3, "too few threads"), (1, "too small for")])
def test_threads_are_not_too_few_where_chunks_are_too_small_for_more(worth, words):
    slow = changed("decode", cpu_s=50e-6)
    plan = dataclasses.replace(source_plan(decode=slow), num_builders=1, builders_worth=worth)
    assert words in verdict(plan).sentence


def test_without_a_step_the_verdict_says_what_steps_the_supply_can_carry():
    plan = on(source_plan(), network_bytes_s=40e6, connection_bytes_s=40e6).without("step")
    found = verdict(plan)
    assert found.stages == ("fetch",)
    assert found.lost_share is None
    assert "enough for steps of 18.4 ms or longer" in found.sentence
