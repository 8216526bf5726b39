"""The records of a finding, and how the manual names their types."""

from __future__ import annotations

from msgspec import inspect

from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import (
    Advice,
    Blame,
    BusyThread,
    Cause,
    Loader,
    Machine,
    Measurements,
    Patch,
    Phases,
    Rank,
    RareSteps,
    SourceLine,
    Stretch,
    Sync,
    TrialResult,
    WhatIf,
    Work,
)

RECORDS = [
    Finding,
    Cause,
    SourceLine,
    Advice,
    TrialResult,
    Patch,
    Measurements,
    Stretch,
    WhatIf,
    Rank,
    BusyThread,
    RareSteps,
    Phases,
    Sync,
    Blame,
    Loader,
    Work,
    Machine,
]


def type_name(kind: inspect.Type) -> str:
    """Return a type as the manual writes it."""
    match kind:
        case inspect.UnionType():
            return f"{' or '.join(type_name(member) for member in kind.types if not isinstance(member, inspect.NoneType))}?"
        case inspect.ListType():
            return f"[{type_name(kind.item_type)}]"
        case inspect.DictType():
            return f"{{{type_name(kind.value_type)}}}"
        case inspect.StructType():
            return kind.cls.__name__
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values) if len(kind.values) < 8 else "verdict"
        case inspect.IntType():
            return "integer"
        case inspect.FloatType():
            return "number"
        case inspect.StrType():
            return "string"
        case inspect.BoolType():
            return "boolean"
    raise TypeError(f"the manual has no name for {kind}")


def rows(record: type) -> list[tuple[str, str]]:
    """Name and type of each field."""
    info = inspect.type_info(record)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{record} is not a record")
    return [(field.encode_name, type_name(field.type)) for field in info.fields]
