"""What is read of a trace: the same as `json` reads, and as much as there is when a part of the file is missing."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import StokerError
from stoker.doctor.traces import analyse, as_json, read_trace

TEXT = st.text(max_size=12)
NUMBER = st.one_of(st.integers(-5, 10**15), st.floats(-5, 1e12, allow_nan=False).map(lambda value: round(value, 4)))
TIME = st.one_of(NUMBER, NUMBER.map(str))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
ARGS = st.dictionaries(st.sampled_from(["correlation", "bytes", "x", "name"]) | TEXT, VALUE, max_size=3)
EVENT = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "gpu_memcpy"]),
        "name": TEXT,
        "ts": TIME,
        "dur": st.integers(0, 1000),
        "pid": st.integers(0, 3) | st.sampled_from(["CPU", "GPU 0"]),
        "tid": st.integers(0, 3),
    },
    optional={"args": ARGS, "other": VALUE},
)


def nanoseconds(value):
    """Return what a time is, by decimal arithmetic: rounded away from zero at the third decimal."""
    return int((Decimal(str(value)) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def host_first(events):
    """Return events as a trace has them: the host's, then the devices'."""
    return sorted(events, key=lambda event: event["cat"] in ("kernel", "gpu_memcpy"))


def names_of(trace):
    return [trace.texts[index] for part in (trace.host, trace.device) for index in part.name]


@given(events=st.lists(EVENT, max_size=8), indent=st.sampled_from([None, 2]), is_bare=st.booleans())
def test_events_are_those_that_json_reads(tmp_path_factory, events, indent, is_bare):
    path = tmp_path_factory.mktemp("law") / "t.json"
    path.write_text(json.dumps(events if is_bare else {"traceEvents": events, "x": 1}, indent=indent), encoding="utf-8")
    trace = read_trace(path)
    assert trace.num_damaged == 0
    assert not trace.is_cut
    assert trace.num_events == len(events)
    events = host_first(events)
    assert names_of(trace) == [event["name"] for event in events]
    starts, stops = (
        np.concatenate([getattr(trace.host, side), getattr(trace.device, side)]) for side in ("start", "stop")
    )
    for index, event in enumerate(events):
        start = nanoseconds(event["ts"])
        # Exponents go through floating point: there, a nanosecond in 1e15 is not kept.
        assert abs(int(starts[index]) - start) <= (1 if "e" not in str(event["ts"]) else 1 + abs(start) // 10**14)
        assert stops[index] - starts[index] == 1000 * event["dur"]


@given(value=st.integers(-(10**15), 10**15), decimals=st.text("0123456789", max_size=9), quoted=st.booleans())
def test_times_are_exact_to_the_nanosecond(tmp_path_factory, value, decimals, quoted):
    text = f"{value}.{decimals}" if decimals else str(value)
    path = tmp_path_factory.mktemp("law") / "t.json"
    time = f'"{text}"' if quoted else text
    path.write_text(f'[{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "dur": 1, "ts": {time}}}]')
    assert int(read_trace(path).device.start[0]) == nanoseconds(text) or text.startswith("-0")


@given(events=st.lists(EVENT, min_size=1, max_size=6), size=st.integers(1, 60), is_packed=st.booleans())
@examples(9)
def test_the_size_of_blocks_changes_nothing(tmp_path_factory, events, size, is_packed):
    """Blocks that end anywhere: inside a name, a number, a bracket, a value of the header."""
    path = tmp_path_factory.mktemp("law") / "t.json"
    frames = {"1": {"name": 'a "{" \\'}, "2": [[], "]"]}
    text = json.dumps({"stackFrames": frames, "traceEvents": events, "distributedInfo": {"rank": 3, "x": '"}'}, "y": 7})
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    trace = read_trace(path, block_bytes=size)
    assert names_of(trace) == [event["name"] for event in host_first(events)]
    assert (trace.rank, list(trace.header), trace.is_cut, trace.num_damaged) == (3, ["distributedInfo"], False, 0)


def small_trace() -> bytes:
    events = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 1, "args": {"name": 'python "x"'}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 1.5, "dur": 100, "args": {"a": [1]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": "5", "dur": "2.5"}
        | {"args": {"correlation": 4}},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k\\é",
            "pid": 0,
            "tid": 7,
            "ts": 9,
            "dur": 20,
            "args": {"correlation": 4},
        },
        {"ph": "B", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 40},
        {"ph": "E", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 60},
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 2}}, indent=1).encode()


def survives(path) -> None:
    """A result whose parts add up, or a clean error; nothing else."""
    refusal, found = "", {}
    try:
        found = as_json(analyse([read_trace(path)]))
    except StokerError as error:
        refusal = str(error)
    if not found:
        assert str(path) in refusal
        return
    assert found["verdict"]
    times = found["time_us"]
    if times is not None:
        assert times["busy"] + times["idle"] == times["wall"]
        assert min(times.values()) >= 0


@pytest.mark.parametrize(
    ("is_packed", "every"), [(False, 5), (True, 1), pytest.param(False, 1, marks=pytest.mark.slow)]
)
def test_a_trace_cut_at_any_byte_gives_a_result_or_a_clean_error(tmp_path, is_packed, every):
    content = small_trace()
    content = gzip.compress(content) if is_packed else content
    path = tmp_path / "t.json"
    for size in range(0, len(content) + 1, every):
        path.write_bytes(content[:size])
        survives(path)


@given(at=st.integers(0, len(small_trace()) - 1), byte=st.integers(0, 255), is_packed=st.booleans())
@examples(100)
def test_a_changed_byte_gives_a_result_or_a_clean_error(tmp_path_factory, at, byte, is_packed):
    content = bytearray(gzip.compress(small_trace()) if is_packed else small_trace())
    content[at % len(content)] = byte
    path = tmp_path_factory.mktemp("law") / "t.json"
    path.write_bytes(bytes(content))
    survives(path)


@given(content=st.binary(max_size=200) | st.text("[]{},:\"' \n\\phXtsdur0123.e-", max_size=80).map(str.encode))
@examples(100)
def test_noise_gives_a_result_or_a_clean_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("law") / "t.json"
    path.write_bytes(content)
    survives(path)


def test_what_was_written_before_the_cut_is_counted(tmp_path):
    content = small_trace()
    path = tmp_path / "t.json"
    path.write_bytes(content[: content.index(b'"ph": "B"')])
    trace = read_trace(path)
    assert trace.is_cut
    assert len(trace.host) + len(trace.device) == 3
    notes = [note for _, note in analyse([trace]).ranks[0].notes]
    assert "the file is cut off: the events before the cut were counted" in notes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty: 0 bytes"),
        (b" \n", "nothing but white space"),
        (b'{"traceEvents": []}', "there are no events"),
        (b"[]", "there are no events"),
        (b'{"traceEvents": [', "ends before its first event"),
        (b'{"schemaVersion": 1, "dev', "ends before its first event"),
        (b'[{"ph": "M", "name": "x"}]', "no event here is an operator"),
    ],
)
def test_an_empty_trace_has_a_word_of_its_own(tmp_path, content, words):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    found = as_json(analyse([read_trace(path)]))
    assert words in str(found["verdict"])
    assert found["status"] == "no_events"
    assert found["busy_share"] is None


@pytest.mark.parametrize("unit", [1, 1000])
def test_times_in_nanoseconds_since_1970_are_told_from_damage(tmp_path, unit):
    path = tmp_path / "t.json"
    start = 1_700_000_000_000_000 * unit
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": start, "dur": 5 * unit}
    path.write_text(json.dumps({"traceEvents": [event], "displayTimeUnit": "ns"}))
    found = as_json(analyse([read_trace(path)]))
    assert (found["status"] == "ok") == (unit == 1)
    assert ("1 times that are too large for microseconds since 1970" in str(found)) == (unit == 1000)
    assert "made no sense" not in str(found)
    assert ("Nothing to look at: the file has 1 times" in str(found["verdict"])) == (unit == 1000)


def test_a_key_without_an_end_is_given_up_on_and_not_read_again_with_each_block(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b'{"' + b"x" * 1_000_000)
    with pytest.raises(StokerError, match="not a Chrome trace"):
        read_trace(path, block_bytes=256)


def test_brackets_that_nobody_closes_cost_the_events_they_are_in(tmp_path):
    """Each event would be read to the end of the file, to no end."""
    path = tmp_path / "t.json"
    path.write_text("[" + '{"ph":[,' * 100_000 + KERNEL + "]")
    trace = read_trace(path)
    assert (len(trace.device), trace.num_damaged, trace.is_cut) == (1, 100_000, False)


KERNEL = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 20}'
OTHER = KERNEL.replace('"ts": 10', '"ts": 40')


@pytest.mark.parametrize(
    ("content", "num", "num_damaged"),
    [
        (f'{{"traceEvents": [{KERNEL}], "traceEvents": [{OTHER}]}}', 2, 0),
        (f'["x, {{", {KERNEL}, "y", {OTHER}]', 2, 2),
        (f"[{KERNEL}, {OTHER.replace('40', 'null')}]", 1, 1),
        (f"[{KERNEL}, {OTHER.replace('20', 'null')}]", 1, 0),
        (f"[{KERNEL}, {OTHER.replace('20', '-5')}]", 1, 0),
        (f"[{OTHER.replace('7', 'null')}, {KERNEL.replace('7', '{}')}]", 2, 0),
        (f"[{KERNEL.replace('10', '+.5')}, {OTHER.replace('40', '4.e1')}, {OTHER.replace('40', '0x10')}]", 2, 1),
        (f"[{KERNEL}\0, {OTHER}]", 2, 1),
        (f"[{KERNEL.replace(',', '', 1)}, {OTHER}]", 1, 1),
        (f'[{KERNEL[:-1]}, "args": "x"}}, {OTHER[:-1]}, "args": [1, {{"correlation": 3}}]}}]', 2, 0),
        (f'{{"x": {"[" * 10_000}{"]" * 10_000}, "traceEvents": [{KERNEL}]}} and more', 1, 0),
        ("[" + KERNEL.replace("kernel", r"kern\u0065l") + "]", 1, 0),
    ],
)
def test_odd_json_costs_no_more_than_the_odd_event(tmp_path, content, num, num_damaged):
    path = tmp_path / "t.json"
    path.write_text(content)
    trace = read_trace(path)
    assert (len(trace.device), trace.num_damaged, trace.is_cut) == (num, num_damaged, False)


def test_more_names_than_the_first_tables_hold(tmp_path):
    """Tables of texts grow, and every text keeps its number."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op {number}", "pid": number, "tid": 1, "ts": number, "dur": 1}
        for number in range(30_000)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    trace = read_trace(path)
    assert names_of(trace) == [event["name"] for event in events]
    assert [trace.tracks[index].pid for index in trace.host.track] == [event["pid"] for event in events]
