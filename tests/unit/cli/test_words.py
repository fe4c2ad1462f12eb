"""Numbers are written as people read them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.paint import make_console, progress
from stoker.words import (
    age_text,
    bytes_text,
    cost_text,
    count_text,
    duration_text,
    factor_text,
    plain_number,
    range_text,
    rate_text,
    share_text,
    time_text,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_999, "1.0 MB"), (5e15, "5,000.0 TB")],
)
def test_sizes_have_one_digit_and_a_unit(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7260, "2 h 1 min")],
)
def test_durations_never_show_sixty_seconds(seconds, text):
    assert duration_text(seconds) == text


def test_counts_agree_with_their_noun():
    assert count_text(2_000_000) == "2,000,000"
    assert [count_text(n, "chunk") for n in (0, 1, 2)] == ["0 chunks", "1 chunk", "2 chunks"]
    assert count_text(2, "file that is none", plural="files that are none") == "2 files that are none"


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "just now"), (119, "1 min ago"), (7300, "2 h ago"), (1e6, "11 d ago")]
)
def test_ages_are_told_in_their_largest_unit(seconds, text):
    assert age_text(seconds) == text


def test_means_that_are_counts_look_like_counts():
    assert [plain_number(n) for n in (640.0, 12.5, 12345.6)] == ["640", "12.5", "12,346"]


def test_a_line_that_tells_how_far_it_is_may_hold_square_brackets(capsys):
    with progress(make_console(), line_s=0) as tell:
        tell(0, None, "reading column [/b] of [x]")
    assert capsys.readouterr().out == "reading column [/b] of [x]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rate_text(218_453), "218,000"),
        (rate_text(999_900), "1 M"),
        (rate_text(1_254_000), "1.25 M"),
        (rate_text(91.24), "91.2"),
        (rate_text(2.5e13), "25,000 G"),
        (rate_text(float("inf")), "no limit"),
        (range_text(190_200, 218_453), "190,000 to 218,000"),
        (range_text(218_100, 218_200), "218,000"),
        (time_text(4.55e-3), "4.55 ms"),
        (time_text(130), "2 min 10 s"),
        (time_text(1e-6), "1 µs"),
        (time_text(2.08e-17), "under 1 ns"),
        (time_text(0.0), "0 s"),
        (share_text(0.756), "76 %"),
        (share_text(0.0861), "8.6 %"),
        (share_text(0.995), "99.5 %"),
        (share_text(1e-6), "under 0.1 %"),
        (factor_text(2.71), "2.7"),
        (cost_text(4.1e-5), "under 0.01"),
        (cost_text(1_234.5), "1,234.50"),
        (cost_text(0.0), "0.00"),
    ],
)
def test_figures_have_three_digits_and_a_unit(text, expected):
    assert text == expected


@given(st.floats(0, 1e13))
def test_no_figure_has_an_exponent(value):
    for text in (
        rate_text(1e-3 + value),
        time_text(value),
        share_text(min(1.0, value)),
        cost_text(value),
    ):
        assert not re.search(r"\de[+-]", text), text
