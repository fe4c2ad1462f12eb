"""How Perfetto reads a JSON trace, as far as it matters here: what it would drop, and what it would make of the rest.

Written from the rules of its importer (src/trace_processor/importers: json_trace_tokenizer.cc,
json_trace_parser_impl.cc, slice_tracker.cc, flow_tracker.cc), so that a broken trace fails here without its trace
processor at hand.
"""

import json
from dataclasses import dataclass, field


@dataclass
class Slice:
    ts: int
    dur: int
    tid: int
    name: str
    args: dict
    depth: int
    parent: "Slice | None"


@dataclass
class Imported:
    """Its tables, and whatever it would have counted as an error."""

    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    flows: list[tuple[Slice, Slice]] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    other: dict = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def on(self, thread: str) -> list[Slice]:
        """Slices of a thread by its name."""
        tids = [tid for tid, name in self.threads.items() if name == thread]
        return [found for found in self.slices if found.tid in tids]


def ns(value) -> int:
    """Times are microseconds, rounded to the nanosecond."""
    return round(float(value) * 1000)


def read(text: bytes) -> Imported:
    found = Imported()
    content = json.loads(text)
    found.other = content.get("otherData", {})
    events = content["traceEvents"]
    for event in events:
        if "ts" not in event and event["ph"] != "M":
            found.errors.append(f"no time: {event}")
    stacks: dict[int, list[Slice]] = {}
    begun: dict[tuple[str, str, int], Slice] = {}
    for event in sorted(events, key=lambda event: ns(event.get("ts", 0))):  # stable
        _parse(event, found, stacks, begun)
    return found


def _parse(event, found, stacks, begun):
    phase, ts = event["ph"], ns(event.get("ts", 0))
    tid = event.get("tid", event["pid"])
    stack = stacks.setdefault(tid, [])
    if phase == "X":
        _begin(event, ts, ns(event["dur"]), tid, stack, found)
    elif phase == "i":
        if event.get("s") != "t":
            found.errors.append(f"an instant of no thread: {event}")
        _begin(event, ts, 0, tid, stack, found)
    elif phase == "C":
        for name, value in event["args"].items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                found.errors.append(f"a counter that is no number: {event}")
            found.counters.setdefault(f"{event['name']} {name}", []).append((ts, value))
    elif phase == "s":
        if not stack:
            found.errors.append(f"a flow from nowhere: {event}")
        else:
            begun[event["cat"], event["name"], int(event["id"])] = stack[-1]
    elif phase == "f":
        source = begun.get((event["cat"], event["name"], int(event["id"])))
        if source is None or event.get("bp") != "e" or not stack:
            found.errors.append(f"a flow that was not begun, or ends nowhere: {event}")
        else:
            found.flows.append((source, stack[-1]))
    elif phase == "M":
        if event["name"] == "thread_name":
            found.threads[tid] = event["args"]["name"]
        elif event["name"] == "process_name":
            found.processes[event["pid"]] = event["args"]["name"]
    else:
        found.errors.append(f"an unknown phase: {event}")


def _begin(event, ts, dur, tid, stack, found):
    if dur < 0:
        found.errors.append(f"a negative time: {event}")
    for i in range(len(stack) - 1, -1, -1):
        top = stack[i]
        end = top.ts + top.dur
        if end < ts or (end == ts and not (top.dur == 0 and dur == 0)):
            del stack[i:]
        elif ts < end < ts + dur:
            found.errors.append(f"dropped, for it overlaps {top.name} at {top.ts}: {event}")
            return
    new = Slice(ts, dur, tid, event["name"], event.get("args", {}), len(stack), stack[-1] if stack else None)
    found.slices.append(new)
    stack.append(new)
