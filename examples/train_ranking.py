"""Train a ranking model on the demo's data: python examples/train_ranking.py FOLDER [--epochs 3] [--cache FOLDER]

FOLDER holds the Parquet files that `stoker demo` wrote; where there are none, 100,000 rows are written there first.
The two last files are held out, and the AUC on them is printed after each epoch (0.5 is guessing).
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import stoker
from stoker.demo.data import make_data
from stoker.demo.ranking import COUNTRIES, ID_CARDINALITIES
from stoker.torch import TorchLoader

FIELDS = {
    "dense": stoker.Field("float32", columns=["dense_*", "context_*"]),
    "ids": stoker.Field("int64", columns="id_*"),
    "country": stoker.Field("int32", vocabulary=COUNTRIES),
}


class RankingModel(nn.Module):
    """Embeddings of ids, country and both histories, beside the dense features, into an MLP."""

    def __init__(self, buckets=2_000, width=8):
        super().__init__()
        self.register_buffer("sizes", torch.tensor([min(size, buckets) for size in ID_CARDINALITIES]))
        self.register_buffer("starts", self.sizes.cumsum(0) - self.sizes)  # each id has its own part of one table
        self.ids = nn.Embedding(int(self.sizes.sum()), width)
        self.country = nn.Embedding(len(COUNTRIES), width)
        self.clicked_items = nn.EmbeddingBag(buckets, width)
        self.viewed_categories = nn.EmbeddingBag(buckets, width)
        self.mlp = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, batch):
        features = [batch["dense"], batch["query_embedding"], self.country(batch["country"])]
        features.append(self.ids(batch["ids"] % self.sizes + self.starts).flatten(1))
        for name in ("clicked_items", "viewed_categories"):
            bag, lists = getattr(self, name), batch[name]
            # Offsets say where each list begins.
            features.append(bag(lists.values % bag.num_embeddings, lists.offsets[:-1]))
        return self.mlp(torch.cat(features, dim=1)).squeeze(1)


def auc(scores, labels):
    """Return how likely a random positive scores higher than a random negative."""
    ranks = scores.argsort().argsort().double() + 1
    num_positive = labels.sum().double()
    above = ranks[labels > 0].sum() - num_positive * (num_positive + 1) / 2
    return (above / (num_positive * (len(labels) - num_positive))).item()


def train(folder, *, epochs=3, batch_size=2_048, cache=None):
    """Train, print the AUC after each epoch, and return them."""
    files = sorted(folder.glob("*.parquet")) or make_data(folder, num_rows=100_000).paths
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = RankingModel().to(device)
    options = {"batch_size": batch_size, "cache": cache, "device": device}
    found = []
    with (
        TorchLoader(stoker.Dataset(files[:-2], fields=FIELDS), shuffle=True, seed=7, **options) as loader,
        TorchLoader(stoker.Dataset(files[-2:], fields=FIELDS), **options) as held_out,
    ):
        for epoch in range(epochs):
            for i, batch in enumerate(loader):
                logits = model(batch)
                if epoch == i == 0:  # the first batch tells the model its sizes
                    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["label"].float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                pairs = [(model(batch), batch["label"].clone()) for batch in held_out]
            found.append(auc(*(torch.cat(parts).cpu() for parts in zip(*pairs, strict=True))))
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, AUC on rows it has not seen {found[-1]:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="folder on a fast local disk; default: memory")
    options = parser.parse_args()
    train(options.folder, epochs=options.epochs, cache=options.cache)
