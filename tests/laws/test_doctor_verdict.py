"""The verdict follows from what was measured; screen, page and JSON say it, and contradict each other in nothing."""

import dataclasses
import html
import io
import json
import math
import re

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.strategies import examples
from tests.unit.doctor.numbers_made import BATCH, GPU, any_numbers, fed, numbers, path, shared, starved, without_step
from tests.unit.doctor.pages import Page

from stoker.doctor.page import check_report, report_html, words, write_report
from stoker.doctor.results import (
    ARROW,
    LARGER,
    MODEL,
    RAM,
    SETTLED,
    SHARED,
    SOURCE,
    STAGE_NAMES,
    SUPPLY,
    TENSORS,
    UNKNOWN,
    StageResult,
)
from stoker.doctor.screen import print_result
from stoker.doctor.verdict import CERTAIN, KEEPS_UP, LIKELY, NEARLY, DoctorResult
from stoker.words import range_text, rate_text, share_text


def printed(result):
    console = Console(file=io.StringIO(), width=4_000, color_system=None)
    print_result(result, console)
    return " ".join(console.file.getvalue().split())


def plain(text):
    return " ".join(text.split())


@examples(50)
@given(any_numbers())
def test_no_figure_of_a_verdict_contradicts_another(measured):
    verdict = DoctorResult(measured)
    today = measured.path(measured.today)
    assert (verdict.sure == "certain") == (verdict.sureness >= CERTAIN)
    assert (verdict.sure == "a guess") == (verdict.sureness < LIKELY)
    assert 0.5 <= verdict.sureness <= 1
    assert (verdict.kind == "fed") == (verdict.stages == (MODEL,))
    if verdict.demand_s is not None:
        assert verdict.busy == pytest.approx(today.rate_s / verdict.demand_s)
        assert (verdict.busy >= KEEPS_UP) == (verdict.kind == "fed")
        # Near the border the model is named on both sides of it.
        assert MODEL in verdict.stages or verdict.busy < NEARLY
        # No path is faster than what the step is said to eat, and the time between two steps is all of its parts.
        seen = [p for p in measured.paths if verdict.is_comparable(p) and p.key not in (RAM, SHARED)]
        assert all(p.rate_s <= verdict.demand_s for p in seen)
        if today.stall < 1:
            own_s = today.samples_s / (1 - today.stall)
            assert verdict.demand_s <= max(own_s, *(p.rate_s for p in seen), own_s)
        for one in (today, *(fix for fix in verdict.fixes if verdict.is_comparable(fix))):
            parts = verdict.parts_of(one)
            assert sum(seconds for *_, seconds in parts) == pytest.approx(today.batch_size / one.rate_s)
            assert all(seconds >= 0 for *_, seconds in parts)
            assert parts[0] == verdict.parts_of(today)[0]  # the step takes as long on all of them
    else:
        assert verdict.busy is None
        assert verdict.parts_of(today) == ()
        assert verdict.kind == "open"
    for fix in verdict.fixes:
        busy = verdict.busy_of(fix)
        assert fix is measured.path(fix.key)
        assert fix is not today
        assert verdict.times_of(fix) * today.rate_s == pytest.approx(fix.rate_s)
        assert verdict.times_of(fix) > 1
        assert fix.came_s is not None or fix.promised[0] > today.rate_s
        assert busy is None or busy <= 1 + 1e-9
        if busy is not None:
            assert (verdict.limit_of(fix) == MODEL) == (busy >= KEEPS_UP)
    assert not (verdict.kind == "fed" and verdict.fixes)
    assert "could give hardly more" not in verdict.sentence or measured.path(SUPPLY) is not None
    if any("share processors" in note for note in verdict.notes):
        assert verdict.demand_s is None or verdict.demand_s < KEEPS_UP * measured.path(RAM).rate_s
    for best, worse in zip(verdict.fixes, verdict.fixes[1:], strict=False):
        assert best.rate_s >= worse.rate_s / 1.04
    for bound in verdict.bounds:
        assert bound.at_most_s > today.rate_s
        assert bound.key == "gpus" or verdict.demand_s is None or bound.at_most_s <= verdict.demand_s
    assert verdict.epoch_s == pytest.approx(measured.data.num_samples / today.rate_s)
    if verdict.money is not None:
        epoch, stalls, best_fix = (verdict.money[name] for name in ("epoch", "stalls", "best_fix"))
        assert 0 <= stalls <= epoch
        assert best_fix <= epoch
        assert (best_fix < epoch) == (bool(verdict.fixes) and epoch > 0)


@examples(50)
@given(any_numbers())
def test_no_cause_is_named_without_a_figure_of_its_own(measured):
    verdict, today = DoctorResult(measured), measured.path(measured.today)
    for key in verdict.stages:
        has_figure = (
            today.stages.get(key, 0.0) > 0
            or measured.stage(key) is not None
            or (today.is_disk_bound and key in ("fetch", "open"))
            or (key == "open" and today.stages.get("wait_window", 0.0) > 0)
            or (key == "skew" and measured.data.evenness < 1)
            or (key == "batch" and measured.path(LARGER) is not None)
            or (key == MODEL and verdict.demand_s is not None)
        )
        assert has_figure or (key == UNKNOWN and verdict.sure == "a guess")
    assert UNKNOWN not in verdict.stages or verdict.stages in ((UNKNOWN,), (UNKNOWN, MODEL))


@examples(50)
@given(any_numbers())
def test_nothing_is_certain_where_repeats_spread_or_others_took_the_cores(measured):
    verdict, today = DoctorResult(measured), measured.path(measured.today)
    base = measured.path(SHARED) or measured.path(RAM)
    judged = [today] if base is None or verdict.demand_s is None else [today, base]
    if any(path.others > 0.1 or path.spread > 0.12 for path in judged):
        assert verdict.sure != "certain"
        assert "(certain)" not in verdict.sentence
    if any(path.others > 0.4 or path.spread > 0.4 for path in judged):
        assert verdict.sure == "a guess"


@examples(50)
@given(any_numbers())
def test_no_gain_is_above_what_the_step_eats_and_no_rate_below_it_is_enough(measured):
    verdict = DoctorResult(measured)
    if verdict.demand_s is None:
        return
    for fix in verdict.fixes:
        if verdict.is_comparable(fix):
            assert fix.rate_s <= verdict.demand_s
            assert verdict.times_of(fix) <= 1 / verdict.busy * (1 + 1e-9)
    if verdict.busy < KEEPS_UP:
        assert verdict.stages != (MODEL,)
        assert "nothing to gain" not in verdict.sentence
        assert "enough" not in verdict.sentence
    else:
        assert not [bound for bound in verdict.bounds if bound.key != "gpus"]


@settings(examples(20), phases=[Phase.explicit, Phase.generate])
@given(any_numbers())
def test_screen_page_and_json_say_what_the_verdict_says_and_nothing_else(measured):
    result = DoctorResult(measured)
    verdict = result
    screen, page = printed(result), Page(report_html(result))
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert found["verdict"]["sentence"] == verdict.sentence
    assert not [name for name in found["verdict"] if name.startswith("_")]
    assert found["verdict"]["stages"] == list(verdict.stages)
    assert found["verdict"]["busy"] == verdict.busy
    for said in (screen, page.text):
        assert plain(verdict.sentence) in said
        assert plain(verdict.then) in said
        assert "e-" not in said.replace("e-e", "")  # no figure with an exponent
        assert "nan" not in said.replace("Page", "").split()
        for one in measured.paths:
            assert plain(rate_text(one.rate_s)) in said
        for fix in verdict.fixes:
            assert fix.name in said
            assert fix.how in said
            assert plain(range_text(*fix.promised)) in said
        for bound in verdict.bounds:
            assert f"≤ {rate_text(bound.at_most_s)}" in said
        for note in verdict.notes:
            assert note in said
    for path_, told in zip(measured.paths, found["paths"], strict=True):
        assert told["rate_s"] == path_.rate_s
        assert told["promised"] == list(path_.promised)
        if path_.key == measured.today:
            assert told["limit"] == verdict.stages[0]
    if verdict.busy is not None:
        assert f"{share_text(verdict.busy)}of the time the step runs today" in page.text


def test_the_sentence_says_which_stage_why_how_sure_and_what_it_costs():
    verdict = DoctorResult(starved())
    assert verdict.stages == ("fetch",)
    assert verdict.sentence.startswith("Fetch (the network is full) starves the step (certain): 218,000 samples/s")
    assert "idle 78 % of the time, 14.7 ms at each step of 4.1 ms" in verdict.sentence
    assert verdict.fixes[0].key == TENSORS
    assert "4.5 times today's" in verdict.then
    assert "the model limits then" in verdict.then
    assert [bound.key for bound in verdict.bounds] == ["network"]
    assert verdict.bounds[0].at_most_s == 2 * 218_000


def test_a_fed_step_has_nothing_to_gain_and_is_told_how_many_of_it_could_be_fed():
    verdict = DoctorResult(fed())
    assert verdict.kind == "fed"
    assert "nothing to gain" in verdict.sentence
    assert "4.7 times" in verdict.sentence
    assert verdict.fixes == ()
    assert [(bound.key, bound.at_most_s) for bound in verdict.bounds] == [("gpus", 4_700_000)]


def test_a_step_that_shares_cores_with_the_loader_is_judged_by_what_it_eats_beside_one():
    verdict = DoctorResult(shared())
    assert verdict.kind == "fed"
    assert verdict.demand_s == 650_000
    assert any("share processors" in note for note in verdict.notes)
    step, taken, *_ = verdict.parts_of(verdict.today)
    assert step[2] == pytest.approx(BATCH / 1_000_000)
    assert taken[0] == SHARED
    assert taken[2] == pytest.approx(BATCH / 650_000 - BATCH / 1_000_000)


@pytest.mark.parametrize(("stall", "limits"), [(0.01, {""}), (0.5, {"gather", "dequeue"})])
@pytest.mark.parametrize("key", [TENSORS, ARROW])
def test_nothing_that_a_loop_did_not_wait_for_limits_its_path(key, stall, limits):
    tried = path(key, 5e5, stall=stall)
    assert DoctorResult(numbers({SOURCE: 2e5, RAM: 1e6, SUPPLY: 2e5, key: tried})).limit_of(tried) in limits


def test_a_loop_that_did_not_wait_is_fed_though_the_machine_was_faster_when_batches_lay_in_ram():
    busy = path(TENSORS, 118_000, stall=0.02)
    verdict = DoctorResult(numbers({TENSORS: busy, RAM: 137_000, SHARED: 197_000, SUPPLY: 3e6}, stages=()))
    assert verdict.kind == "fed"
    assert verdict.busy == pytest.approx(0.98)
    assert verdict.sure != "certain"


def test_a_path_that_gave_more_is_compared_with_the_very_batches_in_ram_that_it_gave_more_than():
    """Alone, they may well have given more than the path did."""
    verdict = DoctorResult(numbers({SOURCE: 1e5, RAM: 9e5, SHARED: 3e5, SUPPLY: 1e5, TENSORS: 4e5}))
    (note,) = (note for note in verdict.notes if "times what came" in note)
    assert "1.3 times what came of batches in RAM, a loader beside them" in note


def test_without_a_step_the_verdict_says_what_steps_the_supply_can_carry():
    verdict = DoctorResult(without_step())
    assert (verdict.kind, verdict.stages, verdict.busy) == ("open", ("fetch",), None)
    assert "enough for steps of 18.8 ms or longer" in verdict.sentence


def test_a_stage_that_would_starve_the_step_by_itself_is_named_behind_the_first():
    slow = (StageResult(key="fetch", supply_s=2e5), StageResult(key="transform", supply_s=3e5, is_locked=True))
    verdict = DoctorResult(starved(stages=slow))
    assert verdict.stages == ("fetch", "transform")
    assert "hides the transform behind it" in verdict.sentence


def test_a_stage_that_gives_many_times_as_much_alone_is_no_cause():
    alone = tuple(StageResult(key=key, supply_s=3e7) for key in ("fetch", "decode", "convert"))
    verdict = DoctorResult(starved(stages=alone))
    assert verdict.stages == (UNKNOWN,)
    assert verdict.sure == "a guess"
    assert "The data path (no stage of it has a figure that explains why) starves the step" in verdict.sentence
    assert not [bound for bound in verdict.bounds if bound.key == "network"]


def test_a_path_that_alone_gives_far_more_than_the_step_eats_has_no_stage_that_is_too_slow():
    verdict = DoctorResult(numbers({SOURCE: 300_000, RAM: 1e6, SHARED: 4e5, SUPPLY: 2e6}))
    assert verdict.stages == (UNKNOWN,)
    assert "without the step gives 5.0 times what the step eats: loader and step share the cores" in verdict.sentence


def test_a_network_is_full_only_where_it_carries_about_what_it_can():
    idle = numbers({SOURCE: 40_000, RAM: 1e6, SUPPLY: 40_000, TENSORS: 9e5})
    assert "network is full" not in DoctorResult(idle).sentence
    assert "network is full" in DoctorResult(starved()).sentence


def test_batches_that_are_too_small_are_named_where_larger_ones_give_more():
    verdict = DoctorResult(numbers({TENSORS: 1e5, RAM: 1e6, SUPPLY: 1e5, LARGER: 3e5}, stages=()))
    assert verdict.stages == ("batch",)
    assert verdict.fixes[0].key == LARGER
    # As much more as by chance is no sign of it.
    wild = path(TENSORS, 1e5, rates=(0.7e5, 1e5, 1.3e5), stages={"batch": 9e-6, "gather": 8e-6})
    rates = {TENSORS: wild, RAM: 1e6, SUPPLY: 1e5, LARGER: path(LARGER, 1.6e5, batch_size=2 * BATCH)}
    assert DoctorResult(numbers(rates, stages=())).stages == ("gather",)


def test_what_a_disk_allows_where_memory_is_too_small_is_said_to_be_a_bound():
    slow = path(TENSORS, 900_000, disk_s=20e6 / 1_050)
    result = DoctorResult(numbers({TENSORS: slow, RAM: 1_000_000, SUPPLY: 900_000}, stages=()))
    assert result.stages == ("open",)
    assert "at most 19,000 samples/s come" in result.sentence
    assert "the disk reads no faster" in result.sentence
    assert {bound.key: bound.at_most_s for bound in result.bounds} == {
        "memory": 900_000,
        "disk": pytest.approx(2 * 20e6 / 1_050),
    }
    assert "≤ 19,000" in printed(result)


def test_repeats_that_lie_far_apart_and_neighbours_make_a_verdict_less_sure():
    def sureness(spread, others=0.0):
        today = path(SOURCE, 8e5, rates=(8e5 * (1 - spread), 8e5, 8e5 * (1 + spread)), others=others)
        return DoctorResult(numbers({SOURCE: today, RAM: 1e6, SUPPLY: 8e5}, stages=()))

    sharp, blurred, busy = sureness(0.01), sureness(0.4), sureness(0.01, others=0.9)
    assert sharp.sure == "certain"
    assert blurred.sureness < sharp.sureness
    assert blurred.sure in ("likely", "a guess")
    assert busy.sureness < sharp.sureness
    assert any("Other processes took" in note for note in busy.notes)


@given(spread=st.floats(0, 0.9), times=st.floats(1.0, 3.0))
def test_a_gain_that_may_be_chance_is_no_fix(spread, times):
    tensors = path(TENSORS, 1.0, rates=(3e5 * times * (1 - spread), 3e5 * times, 3e5 * times * (1 + spread)))
    found = numbers({SOURCE: 3e5, RAM: 1e6, SUPPLY: 3e5, TENSORS: tensors})
    fixes = DoctorResult(found).fixes
    by_chance = min(0.5, math.hypot(max(0.01, tensors.spread), 0.01))
    assert bool(fixes) == (times > max(1.05, 1 + by_chance) and tensors.promised[0] > 3e5)


@given(middle=st.floats(1.0, 1e9), spread=st.floats(0, 0.9), others=st.floats(0, 0.5), came=st.floats(0.01, 10))
def test_one_figure_is_promised_only_where_repeats_agree_and_else_a_range_around_all_of_them(
    middle, spread, others, came
):
    rates = (middle * (1 - spread), middle, middle * (1 + spread))
    one = path(TENSORS, 1.0, rates=rates, others=others, came_s=came * middle)
    least, most = one.promised
    assert (least == most) == (one.doubt <= SETTLED)
    if least < most:
        assert least <= one.samples_s * (1 - min(spread, 0.9))
        assert most >= rates[-1] * (1 - 1e-9)
    assert (one.error == pytest.approx(0, abs=1e-9)) == (least * (1 - 1e-9) <= one.came_s <= most * (1 + 1e-9))
    assert (one.error > 1e-9) == (one.came_s < least * (1 - 1e-9))


@given(rate=st.floats(0.9, 0.949), supply=st.floats(1.0, 9.0))
def test_a_step_that_is_busy_nearly_all_the_time_is_named_behind_what_holds_it_up(rate, supply):
    slow = path(SOURCE, rate * 1e6, stall=1 - rate)
    verdict = DoctorResult(numbers({SOURCE: slow, RAM: 1e6, SUPPLY: supply * 1e6, TENSORS: 1e6}))
    assert verdict.kind == "starved"
    assert verdict.stages == ("fetch" if supply < 2 else UNKNOWN, MODEL)
    assert "and hides the model behind it" in verdict.sentence


def test_arrow_on_ssd_is_advice_only_where_tensors_on_the_same_disk_give_less():
    rates = {SOURCE: 218_000, RAM: 1e6, ARROW: 600_000}
    for tensors, keys in ({TENSORS: 990_000}, [TENSORS]), ({TENSORS: 400_000}, [ARROW, TENSORS]), ({}, [ARROW]):
        assert [fix.key for fix in DoctorResult(numbers({**rates, **tensors})).fixes] == keys


def test_a_path_that_gave_no_more_than_todays_when_it_was_run_once_more_is_not_advised():
    wild = path(TENSORS, 5e5, rates=(2e5, 5e5, 9e5), came_s=2.2e5)
    measured = numbers({SOURCE: 218_000, RAM: 1e6, SUPPLY: 219_000, TENSORS: wild})
    result = DoctorResult(measured)
    assert result.fixes == ()
    assert any("gave 220,000 samples/s, hardly more than today's path" in note for note in result.notes)
    assert "1.01×" in Page(report_html(result)).text
    lasting = dataclasses.replace(measured, paths=(*measured.paths[:-1], dataclasses.replace(wild, came_s=4e5)))
    assert [fix.key for fix in DoctorResult(lasting).fixes] == [TENSORS]


def test_an_interrupted_examination_says_so_and_what_it_knows():
    known = dataclasses.replace(starved(), interrupted="tensors on SSD")
    known = dataclasses.replace(known, paths=known.paths[:1])
    result = DoctorResult(known)
    assert result.kind == "open"
    assert any("interrupted (tensors on SSD)" in note for note in result.notes)
    assert result.to_json()["interrupted"] == "tensors on SSD"
    nothing = DoctorResult(dataclasses.replace(known, paths=()))
    assert nothing.kind == "unknown"
    assert plain(nothing.sentence) in printed(nothing)
    Page(report_html(nothing))


def test_what_limits_a_path_is_the_model_exactly_where_the_path_feeds_it():
    found = starved()
    limits = {one.key: DoctorResult(found).limit_of(one) for one in found.paths}
    assert limits[SOURCE] == "fetch"
    assert limits[TENSORS] == MODEL
    assert all(limit in STAGE_NAMES for limit in limits.values())


BUILDING = {"batch": 1.0, "wait_window": 0.9, "gather": 0.1, "fetch": 3.0, "decode": 1.0, "publish": 0.5}


@pytest.mark.parametrize(
    ("stages", "build_share", "evenness", "limit"),
    [
        (BUILDING, 0.9, 1.0, "fetch"),
        ({**BUILDING, "decode": 5.0}, 0.9, 1.0, "decode"),
        (BUILDING, 0.2, 0.3, "skew"),
        (BUILDING, 0.2, 1.0, "fetch"),
        ({**BUILDING, "wait_window": 0.1, "gather": 0.8}, 0.9, 1.0, "gather"),
        ({"batch": 1.0, "gather": 0.9}, 0.0, 1.0, "gather"),
        ({"batch": 1.0, "gather": 0.1, "augment": 0.8}, 0.0, 1.0, "augment"),
        ({"batch": 1.0, "wait_window": 0.8, "gather": 0.1}, 0.0, 1.0, "open"),
        ({"batch": 1.0}, 0.0, 1.0, ""),  # nobody was seen at work: nobody is named
        ({"batch": 1.0, "gather": 0.01}, 0.0, 1.0, ""),
        ({}, 0.0, 1.0, ""),
    ],
)
def test_who_does_not_wait_for_another_is_what_limits(stages, build_share, evenness, limit):
    today = path("source", 1.0, stages=stages, build_share=build_share)  # so many threads are at work in each
    known = numbers({"source": today}, stages=())
    known = dataclasses.replace(known, data=dataclasses.replace(known.data, evenness=evenness))
    assert DoctorResult(known).cause_of(today) == limit


@pytest.mark.parametrize(("evenness", "limit"), [(0.3, "skew"), (1.0, "decode")])
def test_uneven_chunks_are_what_limits_where_the_longest_stage_gives_far_more_alone(evenness, limit):
    today = path("source", 1.0, stages=BUILDING, build_share=0.9)
    known = numbers({"source": today}, stages=(StageResult(key="fetch", supply_s=9.0),))
    known = dataclasses.replace(known, data=dataclasses.replace(known.data, evenness=evenness))
    assert DoctorResult(known).cause_of(today) == limit


# ---------------------------------------------------------------------- the page


LOADS = {"src", "srcset", "data", "action", "formaction", "poster", "background", "cite", "ping", "manifest"}
KNOWN = {"starved": starved, "fed": fed, "shared": shared, "no step": without_step}
HOSTILE = "</style><script>alert(1)</script> \"quoted' &amp; \u202ebackwards\x00"


def assert_alone(page: Page) -> None:
    """Nothing on the page makes a browser ask anybody for anything, or run anything."""
    assert not {"script", "link", "iframe", "object", "embed", "img", "image", "base", "form", "a"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert name not in LOADS, f"<{tag} {name}={value}>"
        assert not name.startswith("on"), f"<{tag} {name}>"
        assert name != "style" or re.fullmatch(r"((left|width):[0-9.]+%;?)+", value), value
    assert "url(" not in page.style
    assert "@import" not in page.style
    assert page.tags.count("h1") == 1
    assert all(label.strip() for tag, name, label in page.attributes if name == "aria-label")


@examples(15)
@given(any_numbers())
def test_a_page_of_any_measurements_is_whole_and_alone(numbers):
    assert_alone(Page(report_html(DoctorResult(numbers))))


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_everything_that_was_found_is_on_the_page(make):
    numbers = make(gpus=(GPU,), gpu_hour=2.5, notes=("a note of its own",))
    text = Page(report_html(DoctorResult(numbers))).text
    for said in (
        *(one.name for one in numbers.paths),
        "one byte read",
        *numbers.machine.values(),
        *(f"{name} {version}" for name, version in numbers.versions.items()),
        "held down by power limit",
        numbers.command,
        numbers.data.text,
        numbers.when,
        "What it costs",
    ):
        assert said in text
    assert "a note of its own" in text.lower()
    order = [text.index(title) for title in ("The paths, each run whole", "What would help", "Do it again")]
    assert order == sorted(order)


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_names_that_nobody_vouches_for_are_shown_as_text(make):
    numbers = make()
    data = dataclasses.replace(numbers.data, text=HOSTILE, widest_column=HOSTILE)
    paths = tuple(dataclasses.replace(path, name=HOSTILE, how=HOSTILE) for path in numbers.paths)
    hostile = dataclasses.replace(
        numbers, data=data, paths=paths, command=HOSTILE, notes=(HOSTILE,), machine={HOSTILE: HOSTILE}
    )
    page = Page(report_html(DoctorResult(hostile)))
    assert_alone(page)
    assert " ".join(html.unescape(words(HOSTILE)).split()) in page.text


@given(st.text())
def test_a_text_on_the_page_is_one_line_that_a_page_may_hold(text):
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff<>]", words(text))


def test_bars_are_as_long_as_their_figures():
    text = report_html(DoctorResult(starved()))
    widths = [float(width) for width in re.findall(r'class="row is-\w+">.*?<i style="width:([0-9.]+)%"', text)]
    today, ram, supply, tensors, *_ = widths
    assert tensors / today == pytest.approx(990_000 / 218_000, rel=0.01)
    assert ram / today == pytest.approx(1_000_000 / 218_000, rel=0.01)
    assert supply / today == pytest.approx(219_000 / 218_000, rel=0.01)


def test_no_line_of_a_spread_leaves_its_chart():
    numbers = starved()
    wild = tuple(dataclasses.replace(path, rates=(*path.rates[:2], 50 * path.rates[2])) for path in numbers.paths)
    text = report_html(DoctorResult(dataclasses.replace(numbers, paths=wild)))
    spreads = re.findall(r'<u style="left:([0-9.]+)%;width:([0-9.]+)%"', text)
    assert len(spreads) == len(wild)
    assert all(float(left) + float(width) <= 100.01 for left, width in spreads)


def test_a_page_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "new" / "doctor.html"
    for make in (fed, starved):
        write_report(DoctorResult(make()), path)
    assert "Fetch starves the step" in Page(path.read_text(encoding="utf-8")).text
    assert list(path.parent.iterdir()) == [path]


def test_a_page_can_be_checked_for_before_there_is_a_result(tmp_path):
    check_report(tmp_path / "new" / "page.html")
    with pytest.raises(ValueError, match=r"doctor\.html"):
        check_report(tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_bar_that_is_cut_off_says_so_in_its_name():
    text = Page(report_html(DoctorResult(fed()))).text
    assert text.count("with no step behind it, beyond the scale") == 1
    assert "4.7 M, beyond" not in text
