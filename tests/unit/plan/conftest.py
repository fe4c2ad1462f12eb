"""Commands that plan, run on a data set that a test has made."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from stoker.cli import main


@pytest.fixture
def told(capsys, monkeypatch):
    """Run a command on a data set; return what it says as JSON, or its message where it says nothing else."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(dataset, command, *options):
        module = ModuleType("of_a_test")
        module.__spec__, module.dataset = ModuleSpec("of_a_test", None), dataset
        monkeypatch.setitem(sys.modules, "of_a_test", module)
        main([*command.split(), "of_a_test:dataset", *map(str, options), "--json"])
        out, err = capsys.readouterr()
        return json.loads(out) if out else err

    return call
