"""What goes into a chart, and what becomes of matplotlib's file."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.report.charts_timeline import merged
from stoker.doctor.report.draw import fitted, text_width, wrapped
from stoker.doctor.report.figures import cost, rate, seconds, share, size, times
from stoker.doctor.report.markup import clean, definitions, sentence, words
from stoker.doctor.report.svg import inline
from stoker.doctor.results import RunSpan

DRAWN = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" viewBox="0 0 9 9">
<metadata>who made it</metadata><defs><style>*{stroke: red}</style><path id="m1" d="M 0 0
L 1.123456 2"/></defs><g id="unused"><use xlink:href="#m1" style="fill: #112233; stroke: #ffeedd"/>
<rect fill="#112233" clip-path="url(#m1)"/>
<text style="font: 700 12px 'DejaVu Sans', sans-serif; fill: #112233">a &lt; b</text></g></svg>"""


def test_a_drawing_takes_the_colours_of_the_page_and_leaves_the_rest():
    html = inline(DRAWN, key="k", label='what "it" shows', kind="wide", colours={"#112233": "ink"})
    assert '<use href="#k-m1" style="fill: var(--ink); stroke: #ffeedd"/>' in html
    assert '<rect clip-path="url(#k-m1)" style="fill: var(--ink)"/>' in html


def test_a_drawing_brings_no_style_sheet_no_font_and_no_name_that_is_not_used():
    html = inline(DRAWN, key="k", label="it", kind="wide", colours={})
    assert "who made it" not in html
    assert "<style" not in html
    assert "DejaVu" not in html
    assert "font-size: 12px; font-weight: 700" in html
    assert "unused" not in html
    assert 'd="M 0 0 L 1.12 2" id="k-m1"' in html
    assert ">a &lt; b</text>" in html


@given(st.text(), st.floats(10, 400), st.sampled_from([11.5, 13.5]))
def test_a_fitted_text_fits(text, width, size):
    assert text_width(fitted(text, width=width, size=size), size=size) <= max(width, text_width("…", size=size))


@given(st.lists(st.text("abc名", min_size=1, max_size=8)), st.floats(100, 400))
def test_wrapping_keeps_every_word_and_every_line_fits(parts, width):
    lines = wrapped(" ".join(parts), width=width, size=12)
    assert " ".join(lines).split() == parts
    assert all(text_width(line, size=12) <= width for line in lines)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3))), st.floats(0, 1))
def test_merging_pieces_of_a_track_covers_the_same_time_and_leaves_gaps_apart(times_, gap_s):
    spans = [RunSpan(track="t", stage="s", start_s=start, stop_s=start + length) for start, length in times_]
    pieces = merged(spans, gap_s=gap_s)
    assert all(right[0] - left[1] >= gap_s for left, right in pairwise(pieces))
    for span in spans:
        assert any(start <= span.start_s and span.stop_s <= stop for start, stop in pieces)
    edges = {span.start_s for span in spans} | {span.stop_s for span in spans}
    assert {edge for piece in pieces for edge in piece} <= edges


@pytest.mark.parametrize("show", [rate, seconds, size, share, times, cost])
def test_what_is_no_figure_is_shown_as_none(show):
    assert show(None) == show(float("nan")) == "–"
    assert show(float("inf")) == "no limit"


def test_a_figure_is_shown_as_people_read_it():
    assert [times(0.214), times(4.93), times(14.2), times(1e9)] == ["0.21×", "4.9×", "14×", "> 100×"]
    assert [cost(26.4), cost(0.0047), cost(0)] == ["26.40", "0.0047", "0.00"]
    assert [seconds(0), seconds(0.0041)] == ["0\u00a0s", "4.1\u00a0ms"]


@given(st.text())
def test_a_text_becomes_one_line_that_utf_8_can_write_and_html_cannot_misread(text):
    shown = words(text)
    shown.encode("utf-8")
    assert not set(shown) & set("<>\"'\n\r\x00")
    assert clean(clean(text)) == clean(text)


def test_a_sentence_begins_and_ends_as_one():
    assert sentence("no GPU here") == "No GPU here."
    assert sentence("it is.") == "It is."
    assert sentence("") == ""


def test_what_is_empty_is_left_out_of_definitions():
    assert definitions({"memory": "", "cores": "2"}) == "<dl>\n<dt>cores</dt><dd>2</dd>\n</dl>"
    assert definitions({}) == ""
