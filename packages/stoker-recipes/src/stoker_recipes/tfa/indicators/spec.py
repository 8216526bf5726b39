"""Specs: the requested features, read from JSON and validated; an error names its field. Unknown fields are errors."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from stoker.errors import OptionError
from stoker_recipes.tfa.indicators.operators import OPERATORS, FeatureSettings, Operator
from stoker_recipes.tfa.indicators.program import BAR

Compat = Literal["sentio"]

SOURCES = (*BAR, "logret")
MEANING_CLOSE = ("hlc", "hl", "ohlc", "ohlcv", "close_volume", "hlcv")
"""Sources that mean the close: operators that need more columns read them anyway."""
MAX_WINDOW = 65_536
MAX_FEATURES = 4096
MAX_ROW = 2**31 - 1
_WINDOWS = ("window", "fast", "slow", "signal", "d_period")
_FIELDS = (*_WINDOWS, "k")


class _Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    op: str
    name: str | None = None
    source: str = "close"
    window: int | None = None
    k: float | None = None
    fast: int | None = None
    slow: int | None = None
    signal: int | None = None
    d_period: int | None = None


class _Alignment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    emit_from_index: int = 0
    pad_value: float = 0.0


class _Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    features: list[_Feature]
    schema_version: Literal["1.0"] = "1.0"
    alignment_policy: _Alignment = _Alignment()
    dtype: Literal["float32"] = "float32"
    compat: Compat | None = None
    content_hash: str | None = None


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature: an operator with its fields."""

    name: str
    operator: Operator
    settings: FeatureSettings
    first: int
    """The first bar that is ready, in a series without missing values."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the bars that it needs."""
        return self.operator.reads or ("close" if self.settings.source == "logret" else self.settings.source,)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A validated spec."""

    features: tuple[Feature, ...]
    compat: Compat | None
    emit_from: int
    """The first row in which all features are ready; with compat="sentio" that of the spec, which may be too early."""
    pad: float
    """Value of rows before `emit_from`, with compat="sentio" only."""
    content: Mapping[str, Any]
    """The JSON, as it was given."""
    where: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of all features, in the order of the columns."""
        return tuple(feature.name for feature in self.features)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the spec without its own `content_hash`: equal specs have equal hashes."""
        content = {name: value for name, value in self.content.items() if name != "content_hash"}
        return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()


def parse_spec(spec: Any, *, compat: str | None = None) -> Spec:
    """Read a spec from a mapping, a JSON string or a file; `compat` overrides that of the spec."""
    if isinstance(spec, Spec):
        if compat is None or compat == spec.compat:
            return spec
        spec = spec.content
    if compat not in (None, "sentio"):
        raise OptionError.expected("compat", compat, "'sentio', or None for the exact arithmetic")
    content, where = _content(spec)
    try:
        read = msgspec.convert(content, type=_Spec)
    except msgspec.ValidationError as error:
        raise OptionError(f"{where} is not a spec of features: {str(error).replace('`', '')}.", parameter="spec") from None
    mode: Compat | None = "sentio" if compat == "sentio" else read.compat
    checker = _Checker(where, mode)
    features = checker.features(read.features, content["features"])
    align = read.alignment_policy
    if not 0 <= align.emit_from_index <= MAX_ROW:
        checker.refuse("alignment_policy.emit_from_index", f"{align.emit_from_index}", f"a row from 0 to {MAX_ROW:,}")
    derived = max(feature.first for feature in features)
    return Spec(
        features=features,
        compat=mode,
        emit_from=align.emit_from_index if mode == "sentio" else max(derived, align.emit_from_index),
        pad=align.pad_value,
        content=content,
        where=where,
    )


def _content(spec: Any) -> tuple[Mapping[str, Any], str]:
    """The JSON of a spec as plain values, and how messages name it."""
    where = "the spec"
    if isinstance(spec, Mapping):
        return spec, where
    spec = spec.removeprefix("\ufeff") if isinstance(spec, str) else spec
    # A string is a path where it is one line that does not begin like JSON.
    is_path = isinstance(spec, str) and spec.strip() and "\n" not in spec and not spec.lstrip().startswith(("{", "[", '"'))
    if is_path or isinstance(spec, os.PathLike):
        path = Path(spec)
        where = str(path)
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device would never end
                raise ValueError("it is not a plain file")
            spec = path.read_bytes().removeprefix("\ufeff".encode())
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
            raise OptionError(f"{where!s:.200} cannot be read as a spec: {why}.", parameter="spec") from error
    if not isinstance(spec, str | bytes):
        raise OptionError(
            f"a spec is a mapping, a JSON string, or the path of a file; found {type(spec).__name__}.", parameter="spec"
        )

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise OptionError(f"{where} has the field {twice!r} twice in one object.", parameter="spec")
        return fields

    try:
        msgspec.json.decode(spec)  # its errors name the position
        content = json.loads(spec, object_pairs_hook=once)
    except OptionError:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON: {error}.", parameter="spec") from None
    if not isinstance(content, dict):
        raise OptionError(f'{where} holds a {type(content).__name__}, but a spec is an object with "features".', parameter="spec")
    return content, where


class _Checker:
    """Checks beyond the types of the fields."""

    def __init__(self, where: str, compat: Compat | None) -> None:
        self._where, self._compat = where, compat

    def refuse(self, field: str, value: str, expected: str) -> NoReturn:
        raise OptionError(f"{self._where} at $.{field}: found {value}, expected {expected}.", parameter="spec")

    def features(self, parsed: Sequence[_Feature], raw: Sequence[Mapping[str, Any]]) -> tuple[Feature, ...]:
        if not 1 <= len(parsed) <= MAX_FEATURES:
            self.refuse("features", f"{len(parsed):,} features", f"1 to {MAX_FEATURES:,}")
        features = tuple(self._feature(f"features[{i}]", feature, raw[i]) for i, feature in enumerate(parsed))
        places: dict[str, int] = {}
        for i, feature in enumerate(features):
            first = places.setdefault(feature.name, i)
            if first != i:
                self.refuse(f"features[{i}].name", repr(feature.name), f"a unique name: features[{first}] has this one")
        return features

    def _feature(self, field: str, feature: _Feature, raw: Mapping[str, Any]) -> Feature:
        operator = OPERATORS.get(feature.op)
        if operator is None:
            self.refuse(f"{field}.op", repr(feature.op), f"an operator{_nearest(feature.op, OPERATORS)}")
        source = "close" if feature.source in MEANING_CLOSE else feature.source
        if source not in SOURCES:
            self.refuse(f"{field}.source", repr(feature.source), f"a source{_nearest(feature.source, SOURCES)}")
        settings = FeatureSettings(source=source, **self._numbers(field, feature, operator))  # type: ignore[arg-type]
        delay = 1 if source == "logret" and not operator.reads else 0  # the first bar of the source itself
        find_first = operator.sentio_first if self._compat and operator.sentio_first is not None else operator.first
        first = find_first(settings) + (0 if self._compat else delay)
        if feature.name is not None:
            name = feature.name
        elif self._compat:  # the name that Sentio's Python gives: the fields of the spec, empty where missing
            name = "_".join(str(raw.get(part, "")) for part in ("op", "source", "window", "k"))
        else:
            window = feature.window if feature.window is not None else int(operator.defaults.get("window", 0))
            k = feature.k if feature.k is not None else operator.defaults.get("k", 2.0)
            name = f"{feature.op}_{feature.source}_{window}_{float(k)}"
        if not name or not name.isprintable():
            self.refuse(f"{field}.name", repr(name) if name else "an empty string", "a printable name")
        return Feature(name=name, operator=operator, settings=settings, first=first)

    def _numbers(self, field: str, feature: _Feature, operator: Operator) -> dict[str, float]:
        """The numbers of an operator. Sentio ignores fields that an operator does not have; else they are an error."""
        numbers: dict[str, float] = dict(operator.defaults)
        for name in _FIELDS:
            value = getattr(feature, name)
            if value is None or (self._compat and name not in numbers):
                continue
            if name not in numbers:
                takes = " and ".join(numbers) or "no fields"
                self.refuse(f"{field}.{name}", f"{value:g}", f"nothing: {operator.name} takes {takes}")
            if name in _WINDOWS and not 1 <= value <= MAX_WINDOW:
                self.refuse(f"{field}.{name}", f"{value}", f"a number of bars from 1 to {MAX_WINDOW:,}")
            if not math.isfinite(value):
                self.refuse(f"{field}.{name}", f"{value}", "a finite number")
            numbers[name] = value
        return numbers


def _nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word.upper() if word.upper() in known else word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f": one of {' '.join(sorted(known))}"
