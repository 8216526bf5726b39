"""Text for people: readable units, escaped names from data, URLs and device names."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence

_CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that are escaped."""
_SECRETS = re.compile(r"\?\S*|//[^/\s@]+@|(?i:(?:key|token|secret|signature|credential|password|authorization)\S*\s*[=:]\s*\S+)")


def how_to_install(extra: str | None = None) -> str:
    """Return the sentence that says how to install Stoker's recipes, or what an extra of Stoker needs.

    Stoker is not on a package index, where another package could take its name, so the sentence names a clone.
    """
    target = "./packages/stoker-recipes" if extra is None else f"'./packages/stoker[{extra}]'"
    return f"In the folder of a clone of Stoker: pip install {target}"


def readable_bytes(num_bytes: float) -> str:
    """Format bytes: 1,234,567 is "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


def readable_seconds(seconds: float) -> str:
    """Format seconds: 0.00123 is "1.23 ms", 4000 is "1 h 6 min"."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    seconds = float(f"{seconds:.3g}")  # 999.9 ms are 1 s
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def printable(text: str) -> str:
    """Escape control and invisible characters, so that names from data cannot control a terminal."""
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _CONTROL else character
        for character in text
    )


def html_text(text: str) -> str:
    """A text of several lines as notebooks show it."""
    return f"<pre>{html.escape(printable_lines(text))}</pre>"


def html_table(title: str, rows: Iterable[Sequence[object]]) -> str:
    """A title and a table as notebooks show them; every name from data is plain text."""
    cells = ["".join(f'<td style="text-align: left">{html.escape(printable(str(cell)))}</td>' for cell in row) for row in rows]
    return f"<div>{html.escape(printable(title))}</div><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def printable_lines(text: str) -> str:
    """As `printable`, but lines stay lines."""
    return "\n".join(map(printable, text.splitlines()))


_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^\s:/@]*):\S*@")
_SECRET_VALUE = re.compile(
    r"(?i)([\w-]*(?:password|passwd|passfile|secret|token|signature|credential|authorization|access[_-]?key|\bsig)[\w-]*\s*[=:]\s*)[^\s&,;]+"
)


def is_url(given: object) -> bool:
    """Whether this names a place in object storage, and not a path.

    Example:
        >>> is_url("s3://bucket/events.stoker"), is_url("data/events.stoker")
        (True, False)
    """
    return isinstance(given, str) and _URL.match(given) is not None


def without_credentials(text: str) -> str:
    """A text without the passwords of URLs, and without values whose names say that they are secret.

    Example:
        >>> without_credentials("postgresql://me:p4ss@host/db?sslpassword=abc")
        'postgresql://me@host/db?sslpassword=…'
    """
    return _SECRET_VALUE.sub(r"\1…", _PASSWORD.sub(r"\1@", text))


def redact(text: str) -> str:
    """The first line of a message of a library, shortened, without what may be credentials.

    Example:
        >>> redact("GET https://host/a?X-Amz-Signature=abc failed")
        'GET https://host/a… failed'
    """
    return printable(_SECRETS.sub("…", text.strip().splitlines()[0] if text.strip() else "no reason given")[:200])
