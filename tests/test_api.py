"""The public names are what they say they are."""

import inspect
import re
import subprocess
import sys

import stoker
from stoker import errors


def test_every_exported_name_exists_and_has_a_docstring():
    assert sorted(stoker.__all__) == stoker.__all__
    for name in stoker.__all__:
        assert getattr(stoker, name).__doc__, name


def test_importing_stoker_pulls_in_no_framework_no_compiler_and_neither_demo_nor_commands():
    heavy = ("torch", "jax", "ray", "pyspark", "numba", "pandas", "stoker.demo", "stoker.cli")
    code = f"import stoker, sys; print([m for m in {heavy} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"


def test_the_drawn_error_tree_is_the_real_one():
    lines = errors.__doc__.split("\n")
    drawn = [match.groups() for line in lines if (match := re.match(r"^([ │├└─]*)(\w+Error)\b", line))]
    assert len(drawn) > 5
    parents: dict[int, str] = {}
    for prefix, name in drawn:
        depth = len(prefix) // 4
        parents[depth] = name
        cls = getattr(errors, name)
        if depth > 1:
            assert cls.__bases__[0].__name__ == parents[depth - 1], name
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, Exception)}
    assert classes == {name for _, name in drawn}
    assert classes <= set(stoker.__all__)
