"""Ctrl-C and SIGTERM are answered wherever they come, once."""

from __future__ import annotations

import signal
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from stoker.cli.interrupts import ending_in_order

SIGNALS = [signal.SIGINT, signal.SIGTERM]
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def as_in_a_new_process():
    """Answer signals as Python does: whoever started the tests may have had some ignored."""
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {which: signal.signal(which, handler) for which, handler in default.items()}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)


class Dropped:
    """Sends a signal while it is finalized."""

    def __init__(self, which: signal.Signals) -> None:
        self.which = which

    def __del__(self) -> None:
        signal.raise_signal(self.which)


class Watched:
    """Something that may have a finalizer."""


def ended(act: Callable[[], object]) -> None:
    """Do something that sends a signal, and wait for what it raises."""
    with ending_in_order():
        act()
        time.sleep(PATIENCE_S)


@pytest.mark.parametrize("which", SIGNALS)
def test_a_signal_ends_the_block(which):
    with pytest.raises(KeyboardInterrupt):
        ended(lambda: signal.raise_signal(which))


@pytest.mark.parametrize("which", SIGNALS)
def test_a_signal_that_comes_while_an_object_is_finalized_is_raised_behind_it(which):
    with pytest.raises(KeyboardInterrupt):
        ended(lambda: Dropped(which))
    held = [Watched()]
    weakref.finalize(held[0], signal.raise_signal, which)
    with pytest.raises(KeyboardInterrupt):
        ended(held.clear)


@pytest.mark.parametrize("which", SIGNALS)
def test_a_signal_that_comes_while_pyarrow_imports_pandas_is_raised_behind_it(which):
    def import_as_pyarrow_does():
        with suppress(BaseException):
            exec("raise_signal(which)", {"__name__": "pandas", "raise_signal": signal.raise_signal, "which": which})

    with pytest.raises(KeyboardInterrupt):
        ended(import_as_pyarrow_does)


def test_signals_are_answered_as_before_behind_the_block():
    before = {which: signal.getsignal(which) for which in [*SIGNALS, signal.SIGALRM]}
    with ending_in_order():
        pass
    assert {which: signal.getsignal(which) for which in before} == before


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with ending_in_order():
        signal.raise_signal(signal.SIGTERM)
