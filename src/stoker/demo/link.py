"""The demo's remote store: the local files behind a link with latency and a bandwidth, and a meter on it."""

from __future__ import annotations

import threading

from stoker.storage.storage import BytesLike, ObjectInfo, Storage
from stoker.testing import SlowStorage

# What a host often gets of a lake that a whole fleet reads: 320 Mbit/s, and the first byte after 30 ms, as from an
# object store of the same region.
LATENCY_S = 0.030
BANDWIDTH_BYTES_S = 40e6


class MeteredLink:
    """A `SlowStorage` that counts what is read through it.

    Args:
        inner: Where the files are.
        latency_s: Seconds before the first byte of each call.
        bandwidth_bytes_s: Bytes a second, over all reads together.
    """

    def __init__(self, inner: Storage, *, latency_s: float, bandwidth_bytes_s: float) -> None:
        self._slow = SlowStorage(inner, latency_s=latency_s, bandwidth_bytes_s=bandwidth_bytes_s)
        self._lock = threading.Lock()
        self._bytes_read = 0

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        with self._lock:
            return self._bytes_read

    def list(self, url: str) -> list[ObjectInfo]:
        """Return what is listed, slowly."""
        return self._slow.list(url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what is known of one object, slowly."""
        return self._slow.stat(url)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return what is read, slowly."""
        data = self._slow.read(url, offset, num_bytes)
        with self._lock:
            self._bytes_read += num_bytes
        return data
