"""Numbers are written as people read them."""

import pytest

from stoker.paint import make_console, progress
from stoker.words import age_text, bytes_text, count_text, duration_text, plain_number


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
