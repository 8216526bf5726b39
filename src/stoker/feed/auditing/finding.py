"""Findings: what an audit has to say, one sentence each, and how much it weighs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Severity = Literal["fault", "note", "unchecked", "passed"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

Kind = Literal[
    "empty",
    "seen twice",
    "never seen",
    "mixed rows",
    "foreign rows",
    "order",
    "same order",
    "reused memory",
    "shared samples",
    "not finite",
    "shapes",
    "length",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check and how it came out."""

    kind: Kind
    severity: Severity
    """A fault is a bug; a note is worth knowing; what could not be checked says what is needed."""
    text: str
    count: int = 0
    """Rows, samples or batches concerned."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": self.kind, "severity": self.severity, "count": self.count, "text": self.text}


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1] if len(quoted) > 1 else quoted[0] if quoted else "nothing"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2 rows, 3 batches."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('tch') else 's'}"


def shown(examples: Sequence[str], total: int, between: str = "; ") -> str:
    """Examples at the end of a sentence, with dots where there are more."""
    return between.join(examples) + (f"{between}…" if total > len(examples) else ".")
