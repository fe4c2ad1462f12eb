"""What is read of a trace: the same as `json` reads, and as much as there is when a part of the file is missing."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples
from tests.unit.cli.typed import typed
from tests.unit.doctor.traces.made import Made, traced

TEXT = st.text(max_size=12)
NUMBER = st.one_of(st.integers(-5, 10**15), st.floats(-5, 1e12, allow_nan=False).map(lambda value: round(value, 4)))
TIME = st.one_of(NUMBER, NUMBER.map(str))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
ARGS = st.dictionaries(st.sampled_from(["bytes", "x", "name"]) | TEXT, VALUE, max_size=3)
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


def busy_ns(events):
    """Return for how many nanoseconds something runs on each device, added up."""
    total, work = 0, [event for event in events if event["cat"] in ("kernel", "gpu_memcpy")]
    for device in {event["pid"] for event in work}:
        until = None
        for event in sorted((one for one in work if one["pid"] == device), key=lambda one: nanoseconds(one["ts"])):
            start, stop = nanoseconds(event["ts"]), nanoseconds(event["ts"]) + 1000 * event["dur"]
            total += max(0, stop - (start if until is None else max(start, until)))
            until = stop if until is None else max(until, stop)
    return total


@given(events=st.lists(EVENT, max_size=8), indent=st.sampled_from([None, 2]), is_bare=st.booleans())
def test_events_are_those_that_json_reads(tmp_path_factory, events, indent, is_bare):
    path = tmp_path_factory.mktemp("law") / "t.json"
    path.write_text(json.dumps(events if is_bare else {"traceEvents": events, "x": 1}, indent=indent), encoding="utf-8")
    (rank,) = traced(path)["ranks"]
    assert (rank["num_events"], rank["is_truncated"]) == (len(events), False)
    assert not [note for note in rank["notes"] if "left out" in note]
    assert round(1000 * (rank["time_us"] or {"busy": 0})["busy"]) == busy_ns(events)


@given(name=st.text(min_size=1, max_size=12))
def test_names_are_those_that_json_reads(tmp_path_factory, name):
    made = Made().step(0, 0, 100).host(name, 0, 90, cat="user_annotation").kernel(90, 100)
    found = made.traced(tmp_path_factory.mktemp("law"))
    assert found["largest_range"] == {"name": name, "share": 0.9}


@given(value=st.integers(-(10**15), 10**15), decimals=st.text("0123456789", max_size=9), quoted=st.booleans())
def test_times_are_exact_to_the_nanosecond(tmp_path_factory, value, decimals, quoted):
    text = f"{value}.{decimals}" if decimals else str(value)
    path = tmp_path_factory.mktemp("law") / "t.json"
    events = [
        f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "dur": 1, "ts": {time}}}'
        for time in (value, f'"{text}"' if quoted else text)
    ]
    path.write_text(f"[{', '.join(events)}]")
    apart = abs(nanoseconds(text) - 1000 * value)
    assert round(1000 * traced(path)["time_us"]["wall"]) == apart + 1000


def test_where_blocks_of_the_file_end_changes_nothing(tmp_path):
    """Files are read a mebibyte at a time: inside a name, a number, a bracket, a value of the header."""
    made = Made().step(12, 0.5, 2100.25).host('a "{" \\ name', 100, 1900.125, cat="user_annotation", x=[{"y": "]"}])
    made.launched("cudaLaunchKernel", 1900.5, 2000, 2100).kernel(2050, 2100, "k\u00e9")
    before = {"stackFrames": {"1": {"name": 'a "{" \\'}, "2": [[], "]"]}}
    behind = {"distributedInfo": {"rank": 3, "world_size": 8, "x": '"}'}, "y": 7}
    text, files = json.dumps(before | made.content() | behind).encode(), []
    for at in range(0, len(text), 13):
        files.append(tmp_path / f"{at}.json")
        files[-1].write_bytes(b" " * ((1 << 20) - at if at else 0) + text)
    whole, *others = traced(*files)["ranks"]
    assert (whole["is_truncated"], whole["num_events"], whole["world_size"]) == (False, 5, 8)
    assert len(whole["notes"]) == 1  # of the number of steps
    for other in others:
        assert {**other, "rank": whole["rank"], "paths": whole["paths"]} == whole


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


def survive(*paths) -> None:
    """Check that each file has a result whose parts add up, or a clean error; nothing else."""
    code, out, err = typed("trace", *paths, "--json")
    assert code in (0, 1)
    ranks = json.loads(out)["ranks"] if code == 0 else []
    refused = {str(path) for path in paths} - {path for rank in ranks for path in rank["paths"]}
    assert all(path in err for path in refused)
    for times in (rank["time_us"] for rank in ranks):
        if times is not None:
            assert times["busy"] + times["idle"] == times["wall"]
            assert min(times.values()) >= 0


@pytest.mark.parametrize(
    ("is_packed", "every"), [(False, 5), (True, 1), pytest.param(False, 1, marks=pytest.mark.slow)]
)
def test_a_trace_cut_at_any_byte_gives_a_result_or_a_clean_error(tmp_path, is_packed, every):
    content = small_trace()
    content = gzip.compress(content) if is_packed else content
    paths = [tmp_path / f"{size:04}.json" for size in range(0, len(content) + 1, every)]
    for path in paths:
        path.write_bytes(content[: int(path.stem)])
    survive(*paths)


@given(at=st.integers(0, len(small_trace()) - 1), byte=st.integers(0, 255), is_packed=st.booleans())
@examples(100)
def test_a_changed_byte_gives_a_result_or_a_clean_error(tmp_path_factory, at, byte, is_packed):
    content = bytearray(gzip.compress(small_trace()) if is_packed else small_trace())
    content[at % len(content)] = byte
    path = tmp_path_factory.mktemp("law") / "t.json"
    path.write_bytes(bytes(content))
    survive(path)


@given(content=st.binary(max_size=200) | st.text("[]{},:\"' \n\\phXtsdur0123.e-", max_size=80).map(str.encode))
@examples(100)
def test_noise_gives_a_result_or_a_clean_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("law") / "t.json"
    path.write_bytes(content)
    survive(path)


def test_what_was_written_before_the_cut_is_counted(tmp_path):
    content = small_trace()
    path = tmp_path / "t.json"
    path.write_bytes(content[: content.index(b'"ph": "B"')])
    (rank,) = traced(path)["ranks"]
    assert rank["is_truncated"]
    assert rank["time_us"]["busy"] == 20
    assert "the file is cut off: the events before the cut were counted" in rank["notes"]


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
    found = traced(path)
    assert words in found["verdict"]
    assert found["status"] == "no_events"
    assert found["busy_share"] is None


@pytest.mark.parametrize("unit", [1, 1000])
def test_times_in_nanoseconds_since_1970_are_told_from_damage(tmp_path, unit):
    path = tmp_path / "t.json"
    start = 1_700_000_000_000_000 * unit
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": start, "dur": 5 * unit}
    path.write_text(json.dumps({"traceEvents": [event], "displayTimeUnit": "ns"}))
    found = traced(path)
    assert (found["status"] == "ok") == (unit == 1)
    assert ("1 times that are too large for microseconds since 1970" in str(found)) == (unit == 1000)
    assert "made no sense" not in str(found)
    assert ("Nothing to look at: the file has 1 times" in found["verdict"]) == (unit == 1000)


def test_a_key_without_an_end_is_given_up_on_and_not_read_again_with_each_block(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b'{"' + b"x" * 5_000_000)
    code, _, err = typed("trace", path)
    assert code == 1
    assert "not a Chrome trace" in err


def test_brackets_that_nobody_closes_cost_the_events_they_are_in(tmp_path):
    """Each event would be read to the end of the file, to no end."""
    path = tmp_path / "t.json"
    path.write_text("[" + '{"ph":[,' * 100_000 + KERNEL + "]")
    (rank,) = traced(path)["ranks"]
    assert (rank["time_us"]["busy"], rank["is_truncated"]) == (20, False)
    assert "100,000 events made no sense and were left out" in rank["notes"]


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
    (rank,) = traced(path)["ranks"]
    damaged = [note for note in rank["notes"] if "made no sense" in note]
    assert (rank["time_us"]["busy"], rank["is_truncated"]) == (20 * num, False)
    assert damaged == [f"{num_damaged} events made no sense and were left out"][: bool(num_damaged)]


def test_more_names_than_the_first_tables_hold(tmp_path):
    """Tables of texts grow, and every text keeps its number."""
    made = Made()
    for number in range(3_000):
        made.step(number, number, number + 1)
    steps = made.traced(tmp_path)["ranks"][0]["steps"]
    assert [step["step"] for step in steps] == list(range(3_000))
