"""Overrides: `--set data.batch_size=512`, typed like the file and named by as much of the path as is needed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker.errors import ConfigInvalid
from stoker.train.config.checking import known_fields, spelt_out, structs_of
from stoker.train.config.document import Document, parse_yaml

OPTION = "--set"


def override(document: Document, assignments: Sequence[str], config: type) -> Document:
    """The document with some values set; later assignments win."""
    known = known_paths(config)
    tree = _copied(document.tree)
    options = dict(document.options)
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not sign:
            raise ConfigInvalid(f"{OPTION} is {assignment!r}; expected NAME=VALUE, such as {OPTION} batch_size=512.")
        path = find(name.strip(), known)
        value = parse_yaml(text, f"{OPTION} {name.strip()}")
        _put(tree, path, value)
        options[path] = OPTION
    return replace(document, tree=tree, options=options)


def known_paths(config: type) -> list[tuple[str, ...]]:
    """All that can be set: fields, and the names of choices."""
    found: set[tuple[str, ...]] = set()
    for one in known_fields(config):
        found.add(one.path)
        if any(choice.tag is not None for choice in structs_of(one.field.type)):
            found.add((*one.path, "name"))
    return sorted(found)


def find(name: str, known: Sequence[tuple[str, ...]], *, option: str = OPTION) -> tuple[str, ...]:
    """The path that is meant by a whole path, or by an end of it that only one has."""
    parts = tuple(name.split("."))
    if parts in known:
        return parts
    ends = [path for path in known if path[-len(parts) :] == parts]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigInvalid(f"{option} {name} could be {' or '.join(map('.'.join, ends))}. Write it in full.")
    for stop in range(len(parts) - 1, 1, -1):  # below the options of a function of the user's own, any name is known
        if parts[stop - 1] == "options" and parts[:stop] in known:
            return parts
    names = {".".join(path[start:]): path for path in known for start in range(len(path))}
    close = difflib.get_close_matches(name, names, 1, 0.6)
    hint = f"did you mean {'.'.join(names[close[0]])}?" if close else "`stoker train --fields` shows all."
    raise ConfigInvalid(f"{option} {name} is not known; {hint}")


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        inner = spelt_out(tree.get(key))
        tree[key] = inner if isinstance(inner, dict) else {}
        tree = tree[key]
    tree[path[-1]] = value


def _copied(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in tree.items()}
