"""Who takes part, in which environment, and with how many rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to load the data set.

    Attributes:
        key: What it is called on the command line; `ways/{key}_way.py` is its script.
        requirements: What is installed for it, in an environment of its own.
        without_dependencies: Installed afterwards, without what it asks for.
        is_slow: It converts or delivers one Python object a sample, so that it gets fewer rows.
    """

    key: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    is_slow: bool = False


# On CPython 3.11; plain `torch` would bring gigabytes of CUDA libraries along.
_TORCH = "torch==2.13.0"
_PETASTORM_NEEDS = ("dill", "diskcache", "future", "packaging", "pandas", "psutil", "pyzmq", "six", "fsspec")

OURS = ("stoker", "stoker_scalars")
CONTESTANTS = (
    Contestant(key="stoker", requirements=("-e .",)),
    Contestant(key="stoker_scalars", requirements=("-e .",)),
    Contestant(key="arrow", requirements=("pyarrow==26.0.1", "numpy==2.4.6")),
    Contestant(key="torch_batches", requirements=(_TORCH, "numpy==2.4.6", "pyarrow==26.0.1")),
    Contestant(key="torch_samples", requirements=(_TORCH, "numpy==2.4.6", "pyarrow==26.0.1"), is_slow=True),
    Contestant(
        key="petastorm",
        # The newest pyarrow that it still imports with. Its bound on setuptools contradicts torch's, and it asks for
        # all of Spark: both are left out of the resolver's sight.
        requirements=(_TORCH, "numpy<2", "pyarrow==14.0.2", *_PETASTORM_NEEDS),
        without_dependencies=("petastorm==0.13.1", "pyspark<4", "py4j"),
    ),
    Contestant(key="ray", requirements=("ray[data]==2.60.0", "aiohttp", "numpy==2.4.6", "pyarrow==26.0.1")),
    Contestant(key="hf", requirements=("datasets==5.2.0", "numpy==2.4.6", "pyarrow==26.0.1"), is_slow=True),
    Contestant(key="grain", requirements=("grain==0.2.18", "numpy==2.4.6", "pyarrow==26.0.1"), is_slow=True),
    Contestant(
        key="mosaic", requirements=(_TORCH, "mosaicml-streaming==0.13.0", "numpy<2.2", "pyarrow==26.0.1"), is_slow=True
    ),
    Contestant(
        key="litdata", requirements=(_TORCH, "litdata==0.2.76", "numpy==2.4.6", "pyarrow==26.0.1"), is_slow=True
    ),
    Contestant(
        key="webdataset", requirements=(_TORCH, "webdataset==1.0.2", "numpy==2.4.6", "pyarrow==26.0.1"), is_slow=True
    ),
)
