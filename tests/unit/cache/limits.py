"""A limit of the sizes of files, for the length of a with block."""

import resource
from contextlib import contextmanager


@contextmanager
def file_sizes_limited_to(num_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
