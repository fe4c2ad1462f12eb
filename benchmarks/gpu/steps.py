"""Real models that train: how much of the time is the device at their steps?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import IterableDataset

from benchmarks import workloads
from benchmarks.gpu.device import Marks, busy_share
from benchmarks.gpu.plain import PlainRanking, PlainTokens, on_device
from benchmarks.measure import Answer, sized
from stoker import Dataset, Field, Pack
from stoker.demo.data import DemoData
from stoker.demo.ranking import COUNTRIES, ID_CARDINALITIES
from stoker.torch import TorchLoader

NUM_STEPS = sized(150, small=3)
# More than a DataLoader has ready: sixteen workers with two batches each.
_NUM_FIRST = sized(50, small=1)
_PROMISE = 0.97
_VOCABULARY = 128_256
_LENGTH = sized(1_024, small=8)
# Rows of a batch of the ranking model. Large steps keep a GPU of 2024 busy; small ones it has done sooner than Python
# launches the next, so that whatever else takes the interpreter's lock shows.
LARGE, SMALL = sized(32_768, small=64), sized(8_192, small=32)


class Ranking(nn.Module):
    """Embeddings of ids and lists beside dense features, crossed pair by pair, into an MLP: as DLRM does."""

    def __init__(self, *, buckets: int = sized(100_000, small=1_000), width: int = sized(64, small=8)) -> None:
        super().__init__()
        sizes = torch.tensor([min(size, buckets) for size in ID_CARDINALITIES])
        self.register_buffer("sizes", sizes)
        self.register_buffer("starts", sizes.cumsum(0) - sizes)
        self.ids = nn.Embedding(int(sizes.sum()), width)
        self.lists = nn.EmbeddingBag(buckets, width)
        self.country = nn.Embedding(len(COUNTRIES), width)
        self.dense = nn.Sequential(nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, width))
        self.top = nn.Sequential(nn.LazyLinear(1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return a logit a row. Shape [B]."""
        dense = self.dense(torch.cat([batch["dense"], batch["query_embedding"]], dim=1))
        rows = [dense[:, None], self.country(batch["country"].long())[:, None]]
        rows.append(self.ids(batch["ids"] % self.sizes + self.starts))
        for name in ("clicked_items", "viewed_categories"):
            values, offsets = batch[name].values, batch[name].offsets
            rows.append(self.lists(values % self.lists.num_embeddings, offsets[:-1])[:, None])
        every = torch.cat(rows, dim=1)
        crossed = every @ every.transpose(1, 2)
        upper = torch.triu_indices(every.shape[1], every.shape[1], 1, device=crossed.device)
        logits: torch.Tensor = self.top(torch.cat([dense, crossed[:, upper[0], upper[1]]], dim=1))
        return logits.squeeze(1)


class Language(nn.Module):
    """A small causal transformer."""

    def __init__(
        self, *, width: int = sized(512, small=64), num_layers: int = sized(6, small=1), vocabulary: int = _VOCABULARY
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of the next token at each place. Shape [B, L, vocabulary]."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(self.layers(self.tokens(tokens), mask=mask, is_causal=True))
        return logits


class _Work(NamedTuple):
    """A model and its data.

    Attributes:
        words: What it is.
        model: On the device.
        loss: Of a batch.
        dataset: What it trains on.
        options: Of the loader.
        plain: The same data by other means.
        data: What it is, in words; "" for the demo's rows.
    """

    words: str
    model: nn.Module
    loss: Callable[[dict[str, Any]], torch.Tensor]
    dataset: Dataset
    options: dict[str, Any]
    plain: IterableDataset[dict[str, Any]]
    data: str = ""


def run_ranking(
    data: DemoData,
    folder: Path,
    *,
    device: torch.device,
    num_rounds: int,
    batch_size: int = LARGE,
    num_workers: int | None = None,
) -> Answer:
    """A model of many embeddings, which computes little for each byte it gets."""
    fields = {
        "dense": Field("float32", columns=["dense_*", "context_*"]),
        "ids": Field("int64", columns="id_*"),
        "country": Field("int32", vocabulary=COUNTRIES),
    }
    dataset = Dataset([str(path) for path in data.paths], fields=fields)
    plain = PlainRanking(data.paths, batch_size)
    model = Ranking().to(device)

    def loss(batch: dict[str, Any]) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"].float())

    options = {"batch_size": batch_size, "shuffle": True, "cache": folder / "cache"}
    work = _Work(f"a ranking model, batches of {batch_size:,}", model, loss, dataset, options, plain)
    return _run(work, device=device, num_rounds=num_rounds, num_workers=num_workers)


def run_small_ranking(data: DemoData, folder: Path, *, device: torch.device, num_rounds: int) -> Answer:
    """The same in small steps, bound by the loop that launches their operations."""
    return run_ranking(data, folder, device=device, num_rounds=num_rounds, batch_size=SMALL)


def run_language(
    data: DemoData,
    folder: Path,
    *,
    device: torch.device,
    num_rounds: int,
    batch_size: int = 16,
    length: int = _LENGTH,
    num_workers: int | None = None,
) -> Answer:
    """A transformer on packed texts."""
    del data
    rows = workloads.token_rows(folder)
    model = Language().to(device)

    def loss(batch: dict[str, Any]) -> torch.Tensor:
        tokens = batch["tokens"].long()
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(tokens[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    pack = Pack("tokens", length=length)
    options = {"batch_size": batch_size, "shuffle": True, "cache": folder / "cache", "sequence": pack}
    plain = PlainTokens(sorted(Path(rows).glob("*.parquet")), batch_size, length)
    work = _Work("a transformer", model, loss, Dataset(rows), options, plain, f"texts of tokens in rows of {length:,}")
    return _run(work, device=device, num_rounds=num_rounds, num_workers=num_workers)


def _run(work: _Work, *, device: torch.device, num_rounds: int, num_workers: int | None) -> Answer:
    """Train from a warm cache, by a plain DataLoader, and on batches that lie there: the most there could be."""
    model, loss = work.model, work.loss
    others = on_device(work.plain, device, num_workers=num_workers)
    with TorchLoader(work.dataset, device=device, **work.options) as loader:
        for _ in loader:  # warms the cache
            pass
        kept = [dict(batch) for batch in islice(_endless(loader), 8)]
        loss(kept[0])  # tells the model its sizes
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(batch: dict[str, Any]) -> None:
            optimizer.zero_grad(set_to_none=True)
            loss(batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        most, ours, plain = list[_Steps](), list[_Steps](), list[_Steps]()
        for _ in range(num_rounds):
            most.append(_steps(_cycle(kept), step, device))
            ours.append(_steps(_endless(loader), step, device))
            plain.append(_steps(others, step, device))
        others.close()  # and its workers
    lying_s = statistics.median(steps.step_s for steps in most)
    return Answer(
        question=f"{work.words}: share of the time in which its steps run",
        ours=statistics.median(steps.busy for steps in ours),
        ceiling=1.0,
        unit="share of the time, by events on the device",
        ratios=tuple(sorted(steps.busy for steps in ours)),
        promise=_PROMISE,
        remarks=(
            f"{NUM_STEPS} steps a round behind {_NUM_FIRST} that are not counted, "
            f"batches of {work.options['batch_size']:,}",
            f"on batches that lie on the device already: {_words(most, lying_s)}",
            f"from a warm cache: {_words(ours, lying_s)}",
            "by a DataLoader of pyarrow's batches, a process a core, in the files' order: " + _words(plain, lying_s),
        ),
        data=work.data,
    )


class _Steps(NamedTuple):
    """How some steps went.

    Attributes:
        busy: Share of the time in which they ran.
        step_s: From one to the next, on average.
    """

    busy: float
    step_s: float


def _words(rounds: list[_Steps], lying_s: float) -> str:
    busy = ", ".join(f"{steps.busy:.3f}" for steps in rounds)
    step_s = statistics.median(steps.step_s for steps in rounds)
    return f"{busy}, {1e3 * step_s:.2f} ms a step, {lying_s / step_s:.3f} of the most there could be"


def _steps(batches: Iterable[dict[str, Any]], step: Callable[[dict[str, Any]], None], device: torch.device) -> _Steps:
    # Behind a pause everything that is made ahead is there: it goes by before anything is counted.
    marks, first, steps = Marks(device), None, []
    for number, batch in enumerate(islice(batches, _NUM_FIRST + NUM_STEPS)):
        start = marks.mark()
        step(batch)
        if number >= _NUM_FIRST:
            first = start if first is None else first
            steps.append((start, marks.mark()))
    return _Steps(busy_share(marks, steps), marks.seconds(first, steps[-1][1]) / len(steps))


def _endless(loader: TorchLoader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def _cycle(batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    while True:
        yield from batches
