"""Every command: its name, its help and its options. The module of that name does the work, imported when it runs."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from stoker.cli.arguments import Parser, at_least_0, at_least_1, folder, part, seconds, window

Adds: TypeAlias = Callable[[argparse._ActionsContainer], object]
"""Adds options to a parser, or to a group of one."""


class Command(NamedTuple):
    """A command: "cache ls" is done by the function `ls` of `stoker.cli.cache`, "top" by `run` of `stoker.cli.top`.

    Its help is a line for the list of commands, sentences, and examples. One with others inside takes no options.
    """

    name: str
    help: str
    options: Sequence[Adds] = ()  # besides --json
    inner: Sequence[Command] = ()


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="stoker",
        description="Keeps GPUs fed: Parquet is read once, turned into tensors once, and kept on this host's SSD.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _add(parser.add_subparsers(metavar="COMMAND", title="commands"), _COMMANDS)
    return parser


def _add(added: argparse._SubParsersAction[Parser], commands: Sequence[Command]) -> None:
    for command in commands:
        about, _, examples = inspect.cleandoc(command.help).partition("\n\nExamples:\n")
        summary, _, text = about.partition("\n\n")
        parser = added.add_parser(
            command.name.rpartition(" ")[2],
            help=summary[:1].lower() + summary[1:].rstrip("."),
            description=text,
            epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.fill = partial(_fill, parser, command)


def _fill(parser: Parser, command: Command) -> None:
    """Add a command's options, or the commands inside it: of one that is typed alone, for it takes longest."""
    if command.inner:
        names = " | ".join(inner.name.rpartition(" ")[2] for inner in command.inner)
        _add(parser.add_subparsers(metavar=names, title="commands", required=True), command.inner)
        return
    parser.set_defaults(command=command.name)
    for add in (_option("--json", "print one JSON object, for scripts"), *command.options):
        add(parser)


def _option(
    usage: str, text: str, kind: Callable[[str], object] | None = None, default: object = None, **more: Any
) -> Adds:
    """Return what adds an option or an argument, which help describes by `text` and its default.

    The usage is "--seed N", or "--once" for a switch; "--engine here|ray" takes one of these words, the first by
    default. An argument has its name before what is typed: "target TARGET". `kind` turns text into a value.
    """
    name, _, value = usage.partition(" ")
    if not value:
        given: dict[str, Any] = {"action": "store_true", "default": default or False}
    elif value.islower() and "|" in value:
        given = {"choices": value.split("|"), "default": value.partition("|")[0]}
    else:
        given = {"metavar": value, "type": kind, "default": default}
    told = f" (default: {given['default']})" if value and given["default"] is not None else ""
    return lambda parser: parser.add_argument(name, help=text + told, **given | more)


def _group(title: str | None, *options: Adds) -> Adds:
    """Return what adds options under a title; without one, options of which exactly one must be given."""

    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_argument_group(title) if title else parser.add_mutually_exclusive_group(required=True)
        for one in options:
            one(group)

    return add


def _target(named: str = "a Dataset or Mixture", **more: Any) -> Adds:
    """Return what adds the arguments that say which data set is meant."""
    quoted = 'nested ones with dots; a name with a comma in quotes: A,"B,C"'
    options = (
        _option("target TARGET", f"Parquet file, folder, glob or URL; or {named} in code: train.py:dataset", **more),
        _option("--columns A,B,...", f"only these columns, {quoted}"),
        _option("--chunk-size SIZE", "target size of a chunk (default: 32MiB)"),
        _option("--refresh", "list a remote source again instead of trusting what the cache kept"),
    )
    return lambda parser: [add(parser) for add in options]


def _order(*, shuffle: bool) -> Adds:
    """Return what adds the arguments of `Loader` that decide the order, under their names."""
    told = f"whether it shuffles (default: {'yes' if shuffle else 'no'})"
    return _group(
        "the order, as your Loader has it",
        _option("--batch-size B", "samples per batch, on one rank", at_least_1, required=True),
        _option("--shuffle", told, action=argparse.BooleanOptionalAction, default=shuffle),
        _option("--seed N", "seed of the shuffle", int, 0),
        _option("--window K", 'chunks that are mixed together, or "all" (default: about 512 MiB)', window),
        _option("--lanes N", "equal shares of the samples, one per node", at_least_1, 1),
        _option("--epoch E", "which epoch, counted from 0", at_least_0, 0),
        _option("--world-size W", "number of ranks", at_least_1, 1),
    )


_UNITS = _group(
    "what the order counts, as your Loader has it (default: rows)",
    _option("--group-by A,B,...", "columns whose runs of equal values stay together"),
    _option("--weights NAME", "column by which samples are drawn"),
    _option("--sequence NAME", "a stoker.NGram or stoker.Pack in code: train.py:pack"),
)
_CORES = "(default: the cores this process may use)"
_REMAINDER = _option("--remainder keep|drop|pad", "as your Loader has it")
_ON_ERROR = _option("--on-error raise|substitute", "what becomes of bad rows, as your Loader has it")
_PLAN_CACHE = _option(
    "--cache DIR", "the cache of a loader that has run: needed with a transform and no --window", folder
)
_EXISTING_CACHE = (
    _option("folder DIR", "the cache folder"),
    _option("--shared", "it is shared with other users on purpose"),
)

_EPILOG = """\
TARGET is a Parquet file, folder, glob or URL (s3://, gs://, abfss://,
hdfs://, ...), or the name of a stoker.Dataset in your own code, so that
its filter, fields and transform are used:

  stoker inspect s3://lake/ranking/2026-11/
  stoker inspect train.py:dataset
  stoker warm package.module:dataset --cache /nvme/stoker

exit codes: 0 done · 1 it failed, the message says why · 2 wrong usage
            3 damaged chunks were found · 130 interrupted, or terminated

`stoker COMMAND --help` has the options and examples of a command.
"""

_COMMANDS = (
    Command(
        "demo",
        """See on this machine what Stoker does, in under four minutes.

        Writes a ranking data set, serves it as slowly as a remote store, and trains
        three epochs on it in five ways: plain Parquet, four times the threads, Arrow
        on SSD, Stoker, and everything in RAM. Prints how busy each kept the
        accelerator and where the time went, and writes a page with charts.

        Examples:
            stoker demo
            stoker demo --rows 500000 --html demo.html
        """,
        (
            _option("--rows N", "rows of the data set (default: about 2 million)", at_least_1),
            _option("--folder DIR", "where the data set is kept between runs (default: ~/.cache/stoker/demo)"),
            _option("--html FILE", "where the page is written", default="stoker-demo.html"),
        ),
    ),
    Command(
        "doctor",
        """Say why the GPU waits, and what would help, each tried for a few seconds.

        Runs your whole data path with the step behind it, then the alternatives:
        batches in RAM, tensors on SSD, Arrow on SSD, more threads, and others. Each
        runs for a few seconds, in turn, within a time budget. Says which stage starves
        the step, how sure that is, what it costs, and what helped. Leaves no files
        behind.

        Without a step it says how many samples per second the path supplies, and
        which steps that feeds.

        Examples:
            stoker doctor --demo
            stoker doctor s3://lake/ranking/2026-11/ --step-time 0.01 --batch-size 4096
            stoker doctor train.py:dataset --step train.py:step --device cuda --verify
            stoker doctor train.py:dataset --cache /nvme/stoker --step-time 10ms --gpu-hour 2.50
            stoker doctor --ranks rank0.json rank1.json rank2.json rank3.json
        """,
        (
            _target("a Dataset", nargs="?"),  # a demo has a data set of its own
            _option("--demo", "examine the demo's data behind its slow simulated link"),
            _group(
                "the step",
                _option("--step-time S", "how long a step takes, such as 0.01 or 10ms", seconds),
                _option("--step MODULE:FUNCTION", "a function of a batch, such as train.py:step: it is measured"),
                _option("--batch-size B", "samples per step (default: 4096)", at_least_1),
                _option("--device D", "cpu, cuda, cuda:1: it gets tensors; numpy: arrays (default: by its module)"),
            ),
            _group(
                "the loader, as training has it",
                _option("--cache DIR", "the cache that training uses; the experiments do not touch it", folder),
                _option("--threads N", f"its threads {_CORES}", at_least_1),
                _option("--processes", "its transform runs in processes"),
            ),
            _option("--ranks FILE", "compare the --json of several ranks, and name the slow one", nargs="+"),
            _option("--budget S", "seconds for all of it", seconds, 60),
            _option("--scratch DIR", "where experiments write (default: beside the cache)", folder),
            _option("--verify", "run the best fix once more, and compare it with what was promised"),
            _option("--gpu-hour PRICE", "what an hour of one GPU costs", float),
            _option("--gpus N", "GPUs that wait together", at_least_1, 1),
            _option("--html FILE", "also write the result to one page with charts", Path),
        ),
    ),
    Command(
        "inspect",
        """Show what a data set is, and what each of its columns becomes.

        Shows what lies at TARGET (files, row groups, rows) and what a loader would
        make of it: the tensor each column becomes, bytes per sample, size on SSD.
        Reads footers only. With --deduplicate it also reads some rows, and says which
        fields repeat from row to row and what storing them once would save; with
        --compact, which fields fit into narrower types. Exits with 1 if a loader
        would refuse a column, and says what to do about it.

        Examples:
            stoker inspect s3://lake/ranking/2026-11/
            stoker inspect data/ --columns label,dense_0,user.age
            stoker inspect data/ --deduplicate
            stoker inspect data/ --compact
            stoker inspect train.py:dataset --cache /nvme/stoker
        """,
        (
            _target(),
            _option("--cache DIR", "a cache folder: says how much of the data set it holds", folder),
            _option("--deduplicate", "read some rows: says which fields could be stored once, and what that saves"),
            _option("--compact", "read some rows: says which fields could be narrower, and what that costs"),
            _UNITS,
        ),
    ),
    Command(
        "vocabulary",
        r"""Count the values of a column once, and keep them as a file.

        Reads one column of strings or integers once and writes its distinct values,
        the most frequent first, to a file: stoker.Vocabulary.load(FILE) reads it, and
        Field(vocabulary=...) turns each value into its position. With --extend, the
        values of an older file keep their positions, and new ones are appended.

        Examples:
            stoker vocabulary data/ --column word --output word.json --min-count 5
            stoker vocabulary s3://lake/2026-12/ --column word --extend word.json \
                --output word.json
        """,
        (
            _target("a Dataset"),
            _option("--column NAME", "the column, or a column of lists", required=True),
            _option("--output FILE", "where to write the vocabulary, as JSON", required=True),
            _option("--min-count N", "leave rarer values out", at_least_1, 1),
            _option("--max-size N", "keep at most the N most frequent values", at_least_1),
            _option("--extend FILE", "a vocabulary whose values keep their positions"),
        ),
    ),
    Command(
        "warm",
        """Fill a cache before training, so that the first epoch is as fast as the others.

        Builds every chunk of TARGET that the cache does not have yet: the same chunks
        that a Loader with the same Dataset uses. Ctrl-C stops it at any time; the
        same command continues from there. Several at once, in as many terminals,
        share the work.

        With --mirror, chunks that other hosts have uploaded are fetched, and chunks
        built here are uploaded. Any number of hosts share the work by --part 0/8 to
        7/8: each builds and uploads its part, except for chunks already there.
        --engine ray has the nodes of a Ray cluster build all parts.

        A Loader finds these chunks only if its Dataset is the same: for one with a
        filter, fields or a transform, name the Dataset itself, as train.py:dataset.
        For a Loader with group_by or an NGram, which cut chunks between runs of rows,
        give --group-by or --sequence, too.

        Examples:
            stoker warm s3://lake/ranking/2026-11/ --cache /nvme/stoker
            stoker warm train.py:dataset --cache /nvme/stoker --cache-limit 500GB
            stoker warm train.py:dataset --cache /nvme/stoker --processes
            stoker warm train.py:dataset --cache /nvme/stoker --mirror s3://bucket/stoker
            stoker warm train.py:dataset --cache /nvme/stoker --mirror s3://bucket/stoker --part 3/64
            stoker warm train.py:dataset --cache /nvme/stoker --mirror s3://bucket/stoker --engine ray
        """,
        (
            _target(),
            _option("--cache DIR", "folder of the cache, on a fast local disk", folder, required=True),
            _option("--cache-limit SIZE", "size limit of that folder, such as 500GB (default: the disk)"),
            _option("--mirror URL", "where hosts put chunks for each other: a store or a folder"),
            _option("--part I/N", "only this part: 0/8 is the first of eight", part),
            _option("--engine here|ray", "who builds: this process, or a Ray cluster"),
            _option("--parts N", "parts for Ray (default: eight for each node)", at_least_1),
            _option("--shared", "share the cache folder with the users of its group"),
            _option("--threads N", f"threads that build {_CORES}", at_least_1),
            _option("--processes", "run the transform in --threads processes: for one that holds the GIL"),
            _ON_ERROR,
            _UNITS,
        ),
    ),
    Command(
        "ready",
        """Say whether the cache has what the first steps need, as a scheduler's probe.

        Says whether the cache of this host has every chunk that its ranks need for the
        first N steps of an epoch, what is missing, and about how long building that
        takes. Builds nothing. The order is computed from the arguments of your Loader:
        give the same ones here.

        Exits with 0 if all of it is there, with 1 if it is not or cannot be told, and
        with 2 after wrong usage.

        Examples:
            stoker ready data/ --cache /nvme/stoker --steps 100 --batch-size 4096 --shuffle
            stoker ready train.py:dataset --cache /nvme/stoker --steps 500 --batch-size 512 --world-size 16 --ranks 8-15
        """,
        (
            _target(),
            _option("--cache DIR", "the cache folder of this host", folder, required=True),
            _option("--steps N", "how many steps it should have", at_least_1, required=True),
            _option("--first-step K", "the first of these steps", at_least_0, 0),
            _order(shuffle=False),
            _UNITS,
            _option("--ranks R|A-B", "the ranks of this host, such as 8-15 (default: all)"),
            _REMAINDER,
            _ON_ERROR,
            _option("--mirror URL", "the cache's mirror: chunks that it has are fetched, not built"),
        ),
    ),
    Command(
        "cache",
        """Look into a cache folder, check it, remove data sets from it.

        Examples:
            stoker cache ls /nvme/stoker
            stoker cache verify /nvme/stoker --fix
            stoker cache rm /nvme/stoker s3://lake/ranking/2026-10/
        """,
        inner=(
            Command(
                "cache ls",
                """List the data sets in it: chunks, sizes, whether they are in use.

                The most recently opened one comes first.

                Examples:
                    stoker cache ls /nvme/stoker
                """,
                _EXISTING_CACHE,
            ),
            Command(
                "cache verify",
                """Compare the checksums of every chunk.

                Reads every chunk and compares its checksums. Exits with 3 if one is damaged.
                Training notices damage by itself and builds such a chunk again: this command
                is for finding out whether a disk can be trusted.

                Examples:
                    stoker cache verify /nvme/stoker
                    stoker cache verify /nvme/stoker --fix
                """,
                (*_EXISTING_CACHE, _option("--fix", "remove what is damaged, so that it is built again")),
            ),
            Command(
                "cache rm",
                """Remove data sets from it.

                Removes data sets with their chunks, named by their source or by the beginning
                of their fingerprint, as `stoker cache ls` shows them. Chunks that another data
                set shares stay. A data set that a process has open cannot be removed.

                Examples:
                    stoker cache rm /nvme/stoker 3f9a
                    stoker cache rm /nvme/stoker s3://lake/ranking/2026-10/ --yes
                    stoker cache rm /nvme/stoker --all
                """,
                (
                    *_EXISTING_CACHE,
                    _option("names NAME", "source, or beginning of a fingerprint", nargs="*"),
                    _option("--all", "everything"),
                    _option("--yes", "do not ask"),
                ),
            ),
        ),
    ),
    Command(
        "top",
        """Watch the loaders that run on this host: stall, stages, cache, time left.

        Shows every loader of this user on this host: how much of the time its
        training loop steps and how much it waits for batches, what the threads that
        make them are busy with, how often the cache helps, and how long the rest of
        the epoch takes. Rates are those of the last five seconds.

        A loader writes these figures to a small file once a second, unless
        STOKER_STATUS=off is in its environment.

        Examples:
            stoker top
            stoker top --once
            stoker top --json | jq '.loaders[].recent.stall_share'
        """,
        (
            _option("--once", "print once and exit (always so in a pipe)"),
            _option("--interval S", "seconds between two updates", seconds, 1),
        ),
    ),
    Command(
        "explain",
        """Name file, row group and row of every sample of a step, or the steps of a row.

        Reads no data. With --find it does the inverse: it names the steps that use a
        row. The order is computed from the arguments of your Loader: give the same
        ones here.

        With a filter, samples are the rows that pass. Which these are is not known
        without reading; a sample is then named as the n-th passing row of its row
        groups, counted from 0.

        Examples:
            stoker explain data/ --step 17 --batch-size 4096 --shuffle --seed 7
            stoker explain data/ --step 17 --batch-size 512 --rank 3 --world-size 8
            stoker explain data/ --find part-00012.parquet 0 4711 --batch-size 4096
        """,
        (
            _target(),
            _group(
                None,
                _option("--step N", "the step, counted from 0 in its epoch", at_least_0),
                _option(
                    "--find FILE",
                    "a row, by the end of its file's path, row group and row, counted from 0",
                    nargs=3,
                    metavar=("FILE", "ROW_GROUP", "ROW"),
                ),
            ),
            _order(shuffle=False),
            _UNITS,
            _option("--rank R", "the rank", at_least_0, 0),
            _REMAINDER,
            _PLAN_CACHE,
        ),
    ),
    Command(
        "order",
        """Measure how well an order mixes the samples.

        Measures the order of samples before anything is trained with it.

        Examples:
            stoker order quality data/ --column day --batch-size 4096
        """,
        inner=(
            Command(
                "order quality",
                r"""Compare batches with those of a random permutation: is the window large enough?

                Reads one column (a label, a day, a country), and compares how much it varies
                from batch to batch with how much it would in a random permutation: chi-square
                per degree of freedom, 1 where the order mixes perfectly, more where the window
                is too small for data that are sorted by this column. A group, window or packed
                row counts once, with the value of its first row. For a mixture, the labels of
                all data sets are compared, and the share of each data set in a batch is shown.

                Examples:
                    stoker order quality data/ --column label --batch-size 4096
                    stoker order quality data/ --column day --batch-size 4096 --window 64
                    stoker order quality train.py:dataset --column label --batch-size 512 \
                        --world-size 8 --cache /nvme/stoker
                """,
                (
                    _target(),
                    _option("--column NAME", "the column to measure by; a source column", required=True),
                    _order(shuffle=True),
                    _UNITS,
                    _option("--batches N", "how many batches to measure", at_least_1, 256),
                    _PLAN_CACHE,
                ),
            ),
        ),
    ),
    Command(
        "trace",
        """Say where the GPUs of a profiled run idle, and why.

        Reads traces that torch.profiler wrote of any training run (Chrome JSON, plain
        or gzip; CUDA, ROCm and other accelerators). Says how busy the devices were, what
        the launching thread did while they idled, which rank makes the others wait, and
        how long a step would take without waiting for data. A folder stands for the
        traces in it; cycles of one rank's profiler are joined.

        Examples:
            stoker trace trace.json
            stoker trace logs/ --json
            stoker trace logs/ --name data=my_feed --name communication=my_allreduce
        """,
        (
            _option("files FILE", "a trace, or a folder of traces", nargs="+"),
            _option(
                "--name WHAT=REGEX",
                "events whose names match are data, not_data, collate, synchronise or communication; may be repeated",
                action="append",
            ),
        ),
    ),
)
