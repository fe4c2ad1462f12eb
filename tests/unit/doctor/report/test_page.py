"""The doctor's page: whole, alone, and true to the result that it was made from."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from tests.unit.doctor.report import results_made
from tests.unit.doctor.report.pages import Page
from tests.unit.doctor.report.results_made import HOSTILE, data_bound, model_bound, renamed, two_causes, without_step

from stoker.doctor.report import report_html
from stoker.doctor.report.figures import rate
from stoker.doctor.report.markup import clean
from stoker.doctor.results import DoctorResult

LOADS = {"src", "srcset", "data", "action", "formaction", "poster", "background", "cite", "ping", "manifest"}
KNOWN = {"data-bound": data_bound, "two": two_causes, "model-bound": model_bound, "no step": without_step}


def assert_alone(page: Page) -> None:
    """Nothing on the page makes a browser ask anybody for anything, or run anything."""
    assert not {"script", "link", "iframe", "object", "embed", "img", "image", "base", "form", "a"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert name not in LOADS, f"<{tag} {name}={value}>"
        assert not name.startswith("on"), f"<{tag} {name}>"
        assert name != "href" or value.startswith("#"), f"<{tag} href={value}>"
        if name in ("style", "clip-path", "fill", "stroke"):
            assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", value)), value
    assert "url(" not in page.style
    assert "@import" not in page.style


def assert_well_made(page: Page) -> None:
    """Ids are there once, and what refers to one finds it; charts say what they show."""
    assert len(page.ids) == len(set(page.ids))
    targets = [value.removeprefix("#") for value in page.values("href")]
    targets += [found for _, _, value in page.attributes for found in re.findall(r"url\(#([^)]*)\)", value)]
    assert set(targets) <= set(page.ids)
    charts = sum(tag == "svg" for tag in page.tags)
    assert page.values("role").count("img") == charts
    assert all(label.strip() for label in page.values("aria-label"))
    assert page.tags.count("h1") == 1


def plain(text: str) -> str:
    """A text with the blanks that the parsed page has."""
    return " ".join(text.split())


def step_label(result: DoctorResult) -> str:
    """What is said of the chart of a step's time."""
    labels = Page(report_html(result)).values("aria-label")
    return next(plain(label) for label in labels if "between two steps" in label)


@pytest.mark.parametrize("result", [make() for make in KNOWN.values()], ids=KNOWN)
def test_a_page_is_whole_and_alone(result):
    page = Page(report_html(result))
    assert_alone(page)
    assert_well_made(page)


@pytest.mark.parametrize("result", [make() for make in KNOWN.values()], ids=KNOWN)
def test_everything_that_was_found_is_on_the_page(result):
    page = Page(report_html(result))
    text = page.text
    assert result.verdict.sentence in text
    for stage in result.stages:
        assert stage.name in text
        assert plain(rate(stage.supply.samples_s)) in text
    for fix in result.fixes:
        assert fix.text in text
        assert fix.how in text
        assert plain(rate(fix.predicted_s)) in text
    for ceiling in result.ceilings:
        assert ceiling.name in text
        assert ceiling.note in text
    for line in (*result.notes, *result.verdict.notes, result.gpu_note, result.command, result.data.text):
        assert line.lower() in text.lower()
    for value in (*result.machine.values(), *result.versions.values()):
        assert value in text
    for gpu in result.gpus:
        assert gpu.name in text
        assert all(reason in text for reason in gpu.throttled)
    for point in result.sweep.points if result.sweep else ():
        assert f"{point.batch_size:,}" in text
    for path in result.paths:
        assert plain(rate(path.predicted_s)) in text


def test_the_verdict_comes_before_everything_else():
    page = Page(report_html(data_bound()))
    words = page.text
    assert words.index("Fetch starves the step") < words.index("Where a step’s time goes") < words.index("Do it again")


def test_the_bar_of_today_names_what_is_waited_for_and_the_bar_of_the_fix_does_not():
    label = step_label(data_bound())
    today, fixed, ram = label.split("; ")
    assert "waits for fetch 15.4 ms" in today
    assert "With the fix: keep tensors on SSD" in fixed
    assert "waits" not in fixed
    assert "RAM" in ram


def test_each_wait_is_hatched_in_a_way_of_its_own():
    # Three waits, on a desk's drawing: the step's own time is filled, no pattern of another chart has its name.
    html = report_html(two_causes())
    drawn = set(re.findall(r"url\(#(step-wide-h[0-9a-f]+)\)", html))
    assert len(drawn) == 3


def test_a_fix_that_leaves_a_wait_says_what_for():
    result = data_bound()
    result = dataclasses.replace(result, fixes=result.fixes[2:])
    label = step_label(result)
    assert "With the fix: 8 threads instead of 2" in label
    # 4,096 samples at 290,000 a second are 14.1 ms, of which the step takes 4.1.
    assert "14.1 ms a step" in label
    assert "waits for fetch 10 ms" in label


def test_without_a_step_nothing_is_said_of_busy_or_demand():
    text = Page(report_html(without_step())).text
    assert "No step was given" in text
    assert "sets the pace of the data" in text
    assert "demand:" not in text
    assert "Where a step’s time goes" not in text


def test_a_model_that_limits_is_said_to_limit():
    text = Page(report_html(model_bound())).text
    assert "The model is the limit" in text
    assert "starves the step" not in text.split("Where a step’s time goes")[0]
    assert "What it costs" not in text


def test_without_a_gpu_the_page_says_so():
    assert "No GPU here." in Page(report_html(without_step())).text


def test_utilisation_and_sm_activity_are_told_apart():
    text = Page(report_html(data_bound())).text
    assert "some kernel ran" in text
    assert "SM activity the driver does not tell" in text


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_hostile_names_stay_words(make):
    page = Page(report_html(renamed(make(), HOSTILE)))
    assert_alone(page)
    assert_well_made(page)
    # In full, as it was, but for what no page may hold: in tables, whatever a chart had room for.
    assert " ".join(clean(HOSTILE).split()) in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\u202a-\u202e]", page.html)
    page.html.encode("utf-8")


def test_a_very_long_name_is_on_the_page_in_full_and_in_the_chart_in_part():
    name = "user_interaction_history_" * 12
    page = Page(report_html(renamed(data_bound(), name)))
    assert name in page.text
    assert "user_interaction_his" in page.text.replace(name, "")


def test_every_colour_of_a_chart_is_one_of_the_page():
    html = report_html(data_bound())
    page = Page(html)
    used = set(re.findall(r"var\(--([a-z-]+)\)", html))
    defined = set(re.findall(r"--([a-z-]+):", page.style))
    assert used <= defined
    assert not [value for value in page.values("style") if re.search(r"#[0-9a-f]{6}", value)]


def test_dark_defines_every_colour_that_light_defines():
    style = Page(report_html(data_bound())).style
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    assert re.findall(r"--[a-z-]+(?=:)", light) == re.findall(r"--[a-z-]+(?=:)", dark)


def test_the_same_result_gives_the_same_page():
    assert report_html(data_bound()) == report_html(data_bound())


@given(results_made.results)
@settings(max_examples=25)
def test_any_result_makes_a_page(result):
    page = Page(report_html(result))
    assert_alone(page)
    assert_well_made(page)
    text = "".join(page.text.split())
    for name in (*(stage.name for stage in result.stages), *(fix.text for fix in result.fixes)):
        assert "".join(clean(name).split()) in text
