"""What can go wrong between a store and a reader, and what becomes of it: the plan of the fault matrix, and its door.

    reader ──► Door ──► a real server: moto (s3, gs), rclone (s3), a web server (http), Azurite (abfss)
                └── spoils the answers to one operation: a listing, a footer, a range, a chunk of a mirror read or put

`docs/reference/faults.md` has the table that `table` makes.
"""

from __future__ import annotations

import http.client
import itertools
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

# What is asked of a store: of the source, and of a mirror.
SOURCE_OPERATIONS, MIRROR_OPERATIONS = ("list", "footer", "range"), ("mirror read", "mirror write")
OPERATIONS = SOURCE_OPERATIONS + MIRROR_OPERATIONS
SCHEMES = ("s3", "s3 by rclone", "gs", "http", "abfss")
RANKS = ("1", "4 threads", "4 processes")

ROWS = "the right rows"
GIVEN_UP = "SourceError after 4 tries"
REFUSED = "SourceError at once: what to renew or give"
MISSING = "SourceMissingError at once"
CHANGED = "SourceChangedError at once"
CORRUPT = "SourceError: not Parquet, or cannot be decoded"
FETCHED = "the right rows, from the mirror"
BUILT = "the right rows, built from the source"
PUT = "the right rows; the chunk is put there"
LEFT = "the right rows; the chunk stays here"
NOTHING = "(is what a write does)"


@dataclass(frozen=True)
class SoundAnswer:
    """The sound answer of the server."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Fault:
    """One way to spoil an operation.

    Attributes:
        name: Its name in the table.
        outcome: What becomes of it.
        times: How many answers are spoiled; None for all.
        send: Sends the answer in the place of the server.
        status: Or the number that is answered instead.
        code: And the store's word for it.
        does: What happens to the objects right before the answer is given: "change" or "vanish".
    """

    name: str
    outcome: str
    times: int | None = None
    send: Callable[[socket.socket, SoundAnswer, threading.Event], None] | None = None
    status: int | None = None
    code: str = ""
    does: str = ""


def head(answer: SoundAnswer, length: int) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Odd')}", f"Content-Length: {length}"]
    dropped = ("content-length", "transfer-encoding", "connection", "keep-alive")
    lines += [f"{name}: {value}" for name, value in answer.headers if name.lower() not in dropped]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def late(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    over.wait(0.15)
    sock.sendall(head(answer, len(answer.body)) + answer.body)


def slow(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    sock.sendall(head(answer, len(answer.body)))
    step = len(answer.body) // 5 + 1
    for start in range(0, len(answer.body), step):
        over.wait(0.04)
        sock.sendall(answer.body[start : start + step])


def begun(answer: SoundAnswer) -> bytes:
    return head(answer, len(answer.body)) + answer.body[: len(answer.body) // 2] if answer.body else b""


def reset(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    sock.sendall(begun(answer))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def stall(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    sock.sendall(begun(answer))
    over.wait(30)
    sock.close()


def short(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    sock.sendall(head(answer, max(len(answer.body) - 7, 0)) + answer.body[:-7])


def long(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    sock.sendall(head(answer, len(answer.body) + 4) + answer.body + b"more")


def wrong(sock: socket.socket, answer: SoundAnswer, over: threading.Event) -> None:
    sock.sendall(head(answer, len(answer.body)) + bytes(len(answer.body)))


FAULTS = (
    Fault("late answers", ROWS, send=late),
    Fault("a slow link", ROWS, send=slow),
    Fault("a reset in mid-body, once", ROWS, times=1, send=reset),
    Fault("a short body, once", ROWS, times=1, send=short),
    Fault("a long body, once", ROWS, times=1, send=long),
    Fault("a stall, once", ROWS, times=1, send=stall),
    Fault("429, once", ROWS, times=1, status=429, code="TooManyRequests"),
    Fault("500, once", ROWS, times=1, status=500, code="InternalError"),
    Fault("503, once", ROWS, times=1, status=503, code="SlowDown"),
    Fault("resets", GIVEN_UP, send=reset),
    Fault("short bodies", GIVEN_UP, send=short),
    Fault("long bodies", GIVEN_UP, send=long),
    Fault("stalls", GIVEN_UP, send=stall),
    Fault("429", GIVEN_UP, status=429, code="TooManyRequests"),
    Fault("500", GIVEN_UP, status=500, code="InternalError"),
    Fault("503", GIVEN_UP, status=503, code="SlowDown"),
    Fault("416", GIVEN_UP, status=416, code="InvalidRange"),
    Fault("400 of an expired token", REFUSED, status=400, code="ExpiredToken"),
    Fault("401", REFUSED, status=401, code="Unauthorized"),
    Fault("403", REFUSED, status=403, code="AccessDenied"),
    Fault("404", MISSING, status=404, code="NoSuchKey"),
    Fault("wrong content", CORRUPT, send=wrong),
    Fault("changed", CHANGED, does="change"),
    Fault("vanished", MISSING, does="vanish"),
)


def outcome_of(fault: Fault, operation: str, scheme: str = "s3") -> str:
    """What becomes of a fault: of a listing, some differ, and of a web server's page, which has no form."""
    if operation == "mirror read":
        return FETCHED if fault.send in (late, slow) else BUILT
    if operation == "mirror write" and fault.does:
        return NOTHING
    if operation == "mirror write":  # an answer that was lost is not asked for again where the chunk is found there
        is_refused = fault.status is not None and fault.times is None
        return LEFT if is_refused else PUT
    if operation == "list" and scheme == "http" and fault.send in (short, long, wrong):
        return MISSING if fault.send is wrong else ROWS
    if operation == "list":
        if fault.does:  # before the listing was made: it tells the truth
            return ROWS if fault.does == "change" else MISSING
        if fault.send is long:  # what stands behind the end is left alone
            return ROWS
        if fault.send is wrong:
            return GIVEN_UP
    return fault.outcome


def operation_of(method: str, target: str, answer: SoundAnswer) -> str:
    """Tell what a request asks for."""
    url = urlsplit(target)
    if unquote(url.path).endswith(".safetensors"):
        return {"GET": "mirror read", "PUT": "mirror write"}.get(method, "look-up")
    if method == "GET" and ("list-type=2" in url.query or "comp=list" in url.query or url.path.endswith("/")):
        return "list"
    told = next((value for name, value in answer.headers if name.lower() == "content-range"), "")
    if method == "GET" and told:
        stop, _, total = told.rpartition("-")[2].partition("/")
        return "footer" if int(stop) + 1 == int(total) else "range"
    return "look-up"


class Door(socketserver.ThreadingTCPServer):
    """Passes requests on to a server and its answers back, spoiled as `spoil` says."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.upstream = upstream
        self.place = f"127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.answered = threading.Condition(self.lock)
        self.spoil(None, "", lambda what: None)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, name="door")
        self._thread.start()

    def spoil(self, fault: Fault | None, operation: str, happen: Callable[[str], None]) -> None:
        """Spoil answers to an operation from now on, and count from now on."""
        self.fault, self.operation, self.happen = fault, operation, happen
        self.left = iter(range(fault.times)) if fault and fault.times is not None else itertools.count()
        self.over, self.num_requests, self.num_spoiled = threading.Event(), 0, 0

    def turn(self, operation: str) -> Fault | None:
        with self.lock:
            self.num_requests += 1
            is_turn = self.fault is not None and operation == self.operation and next(self.left, None) is not None
            self.num_spoiled += is_turn
            return self.fault if is_turn else None

    def wait(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so, and look again whenever a request was answered."""
        deadline = time.monotonic() + timeout_s
        while not (found := is_so()) and time.monotonic() < deadline:
            with self.answered:
                self.answered.wait(0.2)
        return found

    def handle_error(self, *args: object) -> None:
        """A client that hangs up is none of the door's business."""

    def stop(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Passing(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            method, target, _ = line.decode("latin-1").split()
            headers = []
            while (text := self.rfile.readline().strip()) != b"":
                name, _, value = text.decode("latin-1").partition(":")
                headers.append((name, value.strip()))
            door = self.server
            sent = self.rfile.read(next((int(v) for n, v in headers if n.lower() == "content-length"), 0))
            is_put = method == "PUT"
            fault = door.turn("mirror write") if is_put else None
            if fault is not None and fault.status is not None:  # who refuses keeps nothing
                answer = SoundAnswer(fault.status, [], b"")
            else:
                answer = ask(door.upstream, method, target, headers, sent)
            operation = operation_of(method, target, answer)
            with door.lock:
                if door.fault is not None and door.fault.does and operation == door.operation and not door.num_spoiled:
                    door.num_spoiled += 1
                    door.happen(door.fault.does)
                    answer = ask(door.upstream, method, target, headers)
            if not is_put:
                fault = door.turn(operation)
            with door.answered:
                door.answered.notify_all()
            if fault is not None and fault.send is not None:
                fault.send(self.connection, answer, door.over)
                if fault.send in (reset, stall):
                    return
                continue
            if fault is not None and fault.status is not None:
                body = f"<Error><Code>{fault.code}</Code><Message>not today</Message></Error>".encode()
                answer = SoundAnswer(fault.status, [("Content-Type", "application/xml")], body)
            body = b"" if method == "HEAD" else answer.body
            length = next((int(v) for n, v in answer.headers if n.lower() == "content-length"), len(body))
            self.connection.sendall(head(answer, length if method == "HEAD" else len(body)) + body)


def ask(upstream: str, method: str, target: str, headers: list[tuple[str, str]], body: bytes = b"") -> SoundAnswer:
    connection = http.client.HTTPConnection(upstream, timeout=20)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        # rclone gives a range with the status of a whole object, which the client does not take.
        status = 206 if answer.status == 200 and answer.getheader("Content-Range") else answer.status
        return SoundAnswer(status, answer.getheaders(), answer.read())
    finally:
        connection.close()


def table() -> str:
    """Return the table of the documentation."""
    rows = ["| what goes wrong | " + " | ".join(OPERATIONS) + " |", "|" + "---|" * (1 + len(OPERATIONS))]
    rows += [f"| {fault.name} | " + " | ".join(outcome_of(fault, one) for one in OPERATIONS) + " |" for fault in FAULTS]
    return "\n".join(rows)
