"""Which fields neighbours share: names and patterns against the fields that there are."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stoker.arguments import near
from stoker.errors import FieldError
from stoker.fields.spec import Spec, run_name
from stoker.words import some_of

Share = Mapping[str, Sequence[str]]
"""Field that is the key -> names and patterns of the fields that its equal neighbours share."""


def share_fields(spec: Spec, share: Share) -> Spec:
    """Return the spec with the fields that are shared marked; a key itself is shared by its equal neighbours, too.

    Args:
        spec: All fields, none marked.
        share: What is asked for.

    Raises:
        FieldError: A key is no field, a pattern finds none, or two keys would share one.
    """
    names = [entry.name for entry in spec]
    owners: dict[str, str] = {}
    for key, patterns in share.items():
        if key not in names:
            raise FieldError(
                f"deduplicate: there is no field {key!r} to share by{_near(key, names)}; a key is a field of the "
                "batch, so that what is shared can be told from it",
                columns=[key],
            )
        if run_name(key) in names:
            raise FieldError(
                f"deduplicate: the field {run_name(key)!r} has the name under which chunks keep the run of a sample; "
                "call it otherwise",
                columns=[run_name(key)],
            )
        for pattern in (key, *patterns):
            found = [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not found:
                raise FieldError(f"deduplicate: {pattern!r} names no field{_near(pattern, names)}", columns=[pattern])
            for name in found:
                other = owners.setdefault(name, key)
                if other != key:
                    raise FieldError(
                        f"deduplicate: the field {name!r} is shared by {other!r} and by {key!r}; "
                        "name it under one of them",
                        columns=[name],
                    )
    return Spec(tuple(replace(entry, deduplicated_by=owners.get(entry.name)) for entry in spec))


def _near(name: str, names: Sequence[str]) -> str:
    return f" ({near(name, names) or 'there are ' + some_of(names, 8)})"
