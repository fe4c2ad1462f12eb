"""The help of every command is true of it."""

import re
import shlex

import pytest

from stoker.cli import main
from stoker.cli.commands import make_parser

COMMANDS = [
    *("demo", "doctor", "inspect", "vocabulary", "warm", "ready", "top", "explain", "trace"),
    *("cache ls", "cache verify", "cache rm", "order quality"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_can_be_typed_as_it_is(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out.split("examples:")[1]
    examples = re.sub(r"\\\n *", "", text).strip().splitlines()
    assert examples
    for example in examples:
        name, *arguments = shlex.split(example.partition("|")[0])
        assert name == "stoker"
        assert make_parser().parse_args(arguments).command == command


def test_the_list_of_commands_is_that_of_the_help(capsys):
    assert main(["--help"]) == 0
    listed = re.findall(r"^ {4}(\w+)(?: {2,}\S.*)?$", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(dict.fromkeys(listed))
    assert set(listed) == {command.split()[0] for command in COMMANDS}
