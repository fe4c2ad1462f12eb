"""The doctor's page: whole, alone, and true to the result that it was made from."""

import dataclasses
import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples
from tests.unit.doctor.numbers_made import GPU, any_numbers, fed, shared, starved, without_step
from tests.unit.doctor.report.pages import Page

from stoker.doctor.page import check_report, report_html, words, write_report
from stoker.doctor.verdict import DoctorResult

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
