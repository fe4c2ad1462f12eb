"""Ctrl-C and SIGTERM are answered wherever they come, once."""

from __future__ import annotations

import signal
import sys

import pytest
from tests.unit.cli.typed import typed

SIGNALS = [signal.SIGINT, signal.SIGTERM]
# What sends a signal in the midst of a command: code of the user's, which is run when it is imported.
RAISES = "import signal, time\n\ndef send():\n    signal.raise_signal(signal.{which})\n\n"
WHERE = {
    "anywhere": "send()\n",
    "in a finalizer": "class Dropped:\n    def __del__(self):\n        send()\n\nDropped()\n",
    "in a callback of weakref": "import weakref\n\nclass Held:\n    pass\n\nheld = [Held()]\n"
    "weakref.finalize(held[0], send)\nheld.clear()\n",
    "while pyarrow imports pandas": "try:\n    exec('send()', {{'__name__': 'pandas', 'send': send}})\n"
    "except BaseException:\n    pass\n",
}


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch, tmp_path):
    """Answer signals as Python does, whatever who started the tests had ignored, and forget what is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {which: signal.signal(which, handler) for which, handler in default.items()}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)
    sys.modules.pop("sends_a_signal", None)


def inspected(tmp_path, which, where, then):
    """Inspect a data set of a module that sends a signal."""
    code = (RAISES + WHERE[where]).format(which=which.name) + then
    (tmp_path / "sends_a_signal.py").write_text(code)
    before = [signal.getsignal(one) for one in (*SIGNALS, signal.SIGALRM)]
    found = typed("inspect", "sends_a_signal.py:dataset")
    assert [signal.getsignal(one) for one in (*SIGNALS, signal.SIGALRM)] == before
    return found


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("which", SIGNALS)
def test_a_signal_ends_a_command_in_order_wherever_it_comes(tmp_path, which, where):
    """Where an exception would be lost, it is raised behind that, in what would take a minute."""
    assert inspected(tmp_path, which, where, "time.sleep(60)\n") == (130, "", "interrupted\n")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code, _, err = inspected(tmp_path, signal.SIGTERM, "anywhere", "dataset = 3\n")
    assert code == 2
    assert "nothing with the name 'dataset'" in err
