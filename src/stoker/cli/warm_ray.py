"""`stoker warm --engine ray`: the parts of a data set, built by the tasks of a Ray cluster.

    here     0/32   1/32   2/32   ...                    which chunks are in a part is arithmetic
               ▼      ▼      ▼
    nodes    stoker warm --part I/32  ──► the node's own cache ──► the mirror

Ray decides where a part is built, and has it built again where a worker or a node is lost: what of it is in the mirror
by then is left there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import threading
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from stoker.cli.paint import make_console
from stoker.errors import StokerError
from stoker.words import count_text

# So many, for those that come to a slow node not to be what all wait for.
_PARTS_A_NODE = 8
# A part that fails for good, for what its data set is, should not be tried for ever.
_NUM_TRIES = 4
# How often to look whether Ctrl-C was pressed.
_LOOK_S = 0.5
_SUMS = ("num_chunks", "num_present", "num_built", "num_fetched", "size_bytes", "num_not_uploaded")


def warm_on_ray(options: argparse.Namespace, messages: Console, stop_event: threading.Event) -> dict[str, object]:
    """Have all parts built, and return what came of them, as one `stoker warm --json` tells it.

    Args:
        options: Of `stoker warm`.
        messages: Told how far it is.
        stop_event: When set, parts in the making are cancelled.

    Raises:
        ValueError: Ray is not installed, or no mirror was given.
        StokerError: A part cannot be built.
    """
    if options.mirror is None:
        raise ValueError(
            "--engine ray needs --mirror: where the nodes put their chunks, for each other and for training"
        )
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'stoker[ray]', here and on the nodes") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    num_parts = options.parts or _PARTS_A_NODE * len(nodes)
    threads = options.threads or max(1, int(min(node["Resources"].get("CPU", 1) for node in nodes)))
    given = {
        **vars(options),
        "threads": threads,
        "engine": "here",
        "json": True,
    }
    build = ray.remote(num_cpus=threads, max_retries=_NUM_TRIES, retry_exceptions=True, scheduling_strategy="SPREAD")(
        build_part
    )
    left = {build.remote({**given, "part": (i, num_parts)}): i for i in range(num_parts)}
    told: list[Mapping[str, Any]] = []
    try:
        while left and not stop_event.is_set():
            for done in ray.wait(list(left), timeout=_LOOK_S)[0]:
                told.append(ray.get(done))
                del left[done]
                built, found = (sum(one[name] for one in told) for name in ("num_built", "num_present"))
                chunks = f"{count_text(built, 'chunk')} built, {count_text(found - built)} were there"
                messages.print(f"{len(told)} of {count_text(num_parts, 'part')}: {chunks}")
    except ray.exceptions.RayError as error:
        raise StokerError(
            f"a part could not be built on the cluster: {getattr(error, 'cause', None) or error}"
        ) from error
    finally:
        for task in left:
            ray.cancel(task)
    return {
        **{name: sum(one[name] for one in told) for name in _SUMS},
        "is_complete": not left and all(one["is_complete"] for one in told),
        "num_parts": num_parts,
        "num_nodes": len(nodes),
        "was_stopped": bool(left),
    }


def build_part(options: Mapping[str, Any]) -> dict[str, Any]:
    """Build a part on a node, and return what came of it; runs in a worker of Ray."""
    given, out = argparse.Namespace(**options), io.StringIO()
    with contextlib.redirect_stdout(out):
        code = given.run(given, make_console())
    told: dict[str, Any] = json.loads(out.getvalue())
    if code:
        raise RuntimeError(f"part {options['part']} is not complete: {told}")  # Ray tries again
    return told
