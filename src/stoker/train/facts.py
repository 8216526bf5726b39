"""Facts: what a checkpoint says about the run it is of, compared with the run that would go on from it.

A resumed run is exact only with the same configuration, data and versions. So each field that differs is named with both
values, and is refused unless it is allowed by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stoker.errors import CheckpointInvalid, OptionError
from stoker.printable import printable

_ABSENT = object()
_SHOWN = 60
_LISTED = 8


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], *, allow: Collection[str] = ()) -> list[str]:
    """One line a field that differs, like "config.batch_size: 256 saved, 512 now". `allow` names fields or groups of them.

    Only the groups that `now` has are compared, so a checkpoint may hold more than what has to be equal.
    """
    allowed = [allow] if isinstance(allow, str) else list(allow)
    compared = {key: saved[key] for key in now if key in saved}
    fields = dict(_compare(compared, now, ""))
    for name in allowed:
        if not any(_covers(name, field) for field in fields):
            near = difflib.get_close_matches(name, _names(fields), n=1)
            raise OptionError(f"allow={name!r}: there is no such field" + (f". Did you mean {near[0]!r}?" if near else "."))
    return [
        f"{field}: {_shown(old)} saved, {_shown(new)} now"
        for field, (old, new) in fields.items()
        if not _same(old, new) and not any(_covers(name, field) for name in allowed)
    ]


def check(saved: Mapping[str, Any], now: Mapping[str, Any], *, where: str, allow: Collection[str] = ()) -> None:
    """Refuse to go on where anything differs that is not allowed; `where` names the checkpoint."""
    found = differences(saved, now, allow=allow)
    if found:
        shown = "; ".join(found[:_LISTED]) + (f"; and {len(found) - _LISTED:,} more" if len(found) > _LISTED else "")
        raise CheckpointInvalid(
            f"{where} is of another run: {printable(shown)}. Make them equal, or allow each by name "
            f"({printable(found[0].partition(':')[0])})."
        )


def _compare(saved: Any, now: Any, path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """All leaves of both trees by their dotted names."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping) and (saved or now):
        for key in dict.fromkeys([*saved, *now]):
            name = f"{path}.{key}" if path else str(key)
            yield from _compare(saved.get(key, _ABSENT), now.get(key, _ABSENT), name)
    else:
        yield path, (saved, now)


def _covers(name: str, field: str) -> bool:
    return field == name or field.startswith(f"{name}.")


def _names(fields: Collection[str]) -> list[str]:
    """Fields and the groups they are in."""
    parts = [field.split(".") for field in fields]
    return sorted({".".join(part[:i]) for part in parts for i in range(1, len(part) + 1)})


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, bool) != isinstance(other, bool):
        return False  # True == 1, but not in a configuration
    return bool(one == other) or (one != one and other != other)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
