"""Loaders and data sets take the options of a TypedDict: puts their defaults, which it cannot say, into signatures."""

from __future__ import annotations

from typing import Any

import griffe

from stoker.dataset.description import DEFAULTS as OF_DATA_SETS
from stoker.loader.config import DEFAULTS as OF_LOADERS

# Griffe shows what functools has for it as attributes.
griffe.stdlib_decorators["stoker.host.forks.cached_property"] = griffe.stdlib_decorators["functools.cached_property"]

_DEFAULTS: dict[str, object] = {**OF_DATA_SETS, **OF_LOADERS}


class LoaderSignatures(griffe.UnpackTypedDictExtension):
    """Does what Griffe would do, but with defaults, and without a second list of parameters that says nothing."""

    def on_class(self, **_: Any) -> None:
        """Leave classes to Griffe."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Write the options out."""
        names = {parameter.name for parameter in func.parameters}
        docstring = func.docstring
        super().on_function(func=func)
        for parameter in func.parameters:
            if parameter.name in _DEFAULTS and parameter.name not in names:
                parameter.default = repr(_DEFAULTS[parameter.name])
                func.docstring = docstring
