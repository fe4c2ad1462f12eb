"""Anyone's loader, watched: does the training loop wait for it, when, why, and what would it be worth?

    watched ──► iterator ──► meter ──► tally ──► findings ──► report ──► text
    the loop    hands on     moments   bounded   patterns     verdict    for people
    sees this   and times    to times  memory    by name      + JSON
                   replay: batches in RAM   device: the GPU's clock   ranks: who lags

Callbacks for frameworks that own the loop: `stoker.doctor.watch.callbacks`.
"""

from stoker.doctor.watch.ranks import read_ranks
from stoker.doctor.watch.report import WatchReport
from stoker.doctor.watch.watched import Watched, watch

__all__ = ["WatchReport", "Watched", "read_ranks", "watch"]
