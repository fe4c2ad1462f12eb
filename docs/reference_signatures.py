"""Loaders take the options of one TypedDict: puts their defaults, which it cannot say, into the signatures."""

from __future__ import annotations

from typing import Any

import griffe

from stoker.loader.config import DEFAULTS


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
            if parameter.name in DEFAULTS and parameter.name not in names:
                parameter.default = repr(DEFAULTS[parameter.name])  # type: ignore[literal-required]
                func.docstring = docstring
