"""The help of every command is true of it."""

import re
import shlex

import pytest
from tests.unit.cli.typed import typed

COMMANDS = [
    *("demo", "doctor", "inspect", "vocabulary", "warm", "ready", "top", "explain", "trace"),
    *("cache ls", "cache verify", "cache rm", "order quality"),
]
GROUPS = ["cache", "order"]


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS])
def test_every_example_can_be_typed_as_it_is(command):
    """With an option behind it that no command has, each is refused for that one alone, by its own command."""
    code, text, _ = typed(*command.split(), "--help")
    assert code == 0
    examples = re.sub(r"\\\n *", "", text.split("examples:")[1]).strip().splitlines()
    assert examples
    for example in examples:
        name, *arguments = shlex.split(example.partition("|")[0])
        assert name == "stoker"
        code, out, err = typed(*arguments, "--no-such-thing")
        assert (code, out) == (2, "")
        assert "there is no option --no-such-thing" in err
        assert re.search(f"`stoker {command}{r' [a-z]+' if command in GROUPS else ''} --help`", err)


def test_the_list_of_commands_is_that_of_the_help():
    code, text, _ = typed("--help")
    assert code == 0
    listed = re.findall(r"^ {4}(\w+)(?: {2,}\S.*)?$", text, re.MULTILINE)
    assert listed == list(dict.fromkeys(listed))
    assert set(listed) == {command.split()[0] for command in COMMANDS}
