"""The data set of the mirror's tests, for the command line in processes of their own."""

from __future__ import annotations

import os

from tests.crash.builders import dataset_of

dataset = dataset_of(os.environ["STOKER_TEST_DATA"])
