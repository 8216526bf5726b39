"""Phrases that the documentation, the help texts and the messages avoid, each with the term to use instead.

    python -m tools.language                        lists every phrase found in the documents
    python -m tools.language src                    the same for docstrings and messages of the source, and for names of tests

tests/test_language.py requires that documents, help texts, docstrings, messages, and names of tests have none of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

_UNITS = (
    r"second|minute|step|batch|sample|epoch|row|series|column|value|file|event|update|window|bar|page|label|save|index"
    r"|machine|CPU second"
)
_COUNTED = (
    r"bytes|[kMG]B|ms|µs|ns|(?:milli|micro|nano)?seconds|times|steps|samples|batches|rows|values|points|series|columns|files|events|reads"
    r"|pages|updates|windows|operations|waits|launches|one|once|number|text|name"
)
_OF_A_TRAINING = (
    r"runs?|loops?|steps?|script|set|subset|part|process|program|batch|sample|loader|thread|job|data|rows?|curve|loss|code|dataset"
)

PHRASES: dict[str, str] = {
    r"\b(?:holds?|held|holding) (?:\w+ ){0,3}back\b": "the bottleneck",
    r"\btrainings\b": "training runs",
    rf"\b(?:a|another|each|whole) training\b(?! (?:{_OF_A_TRAINING})\b)": "a training run",
    r"\b(?:told|tells?|telling)\b": "reported, reports, says",
    r"\b(?:go|goes|going|went) on\b": "resumes, continues",
    r"\banew\b": "again",
    r"\bno numbers?\b(?! (?:of|is|has|in)\b)": "NaN or Inf, non-finite",
    r"\bnot a number\b": "NaN",
    r"\bwhole numbers?\b": "integer",
    r"\b(?:nobody|whoever)\b": "name the actor",
    r"\bcannot be meant\b": "is invalid",
    r"(?<!there )\b(?:is|was|are) no (?!longer\b|more\b|less\b|fewer\b|later\b|larger\b|slower\b|different\b|need\b)[a-z]+": "is not a",
    r"\bso many\b": "the number itself",
    rf"\b(?:{_COUNTED}) an? (?:{_UNITS})\b(?! (?:depends|has|is|needs|holds|uses|takes)\b)": "per",
    r"\b(?:matrix|grouped) products?\b": "matmul",
    r"\bexchange of gradients\b": "all-reduce",
    r"\b(?:looked|looks?|looking) at\b": "inspected, measured",
    r"\bthe loop as it is\b": "the baseline",
    r"(?-i:\bstretch(?:es)?\b)": "measurement window",
    r"\b(?:of|the|these|those|measured|their|its|\d+) tries\b": "trials",
    r"\bpictures?\b": "plot, figure, image",
    r"\bof another hand\b": "held-out",
    r"\bdid not come out\b": "negative results",
    r"\bway of the data\b": "data path",
    r"\bmade ahead\b": "prefetched",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\baverages? of the weights\b": "EMA",
    r"\bfound out\b": "auto-detected",
    r"\b(?:survives? anything|cannot be lost|costs? nothing|never fails?|always works?)\b": "the promise that is tested",
    r"\bone's own\b": "your own",
}
"""Regular expressions, without regard to case, and what to write instead."""

_COMPILED = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in PHRASES.items()}


def find(text: str) -> Iterator[tuple[str, str]]:
    """Phrases of a text, each with the term to use instead; line breaks within a paragraph count as spaces."""
    text = re.sub(r"\s+", " ", re.sub(r"\n\s*\n", " | ", text))
    for pattern, instead in _COMPILED.items():
        for match in pattern.finditer(text):
            yield match[0], instead


def documents() -> list[Path]:
    """The documents. The page of the configuration consists of docstrings, which are checked as part of the source."""
    return sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "configuration.md"})


def prose(markdown: str) -> str:
    """A document without code blocks, inline code, link targets and comments; lines stay where they are."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"```.*?```|<!--.*?-->", blank, markdown, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "` `", text)


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and other string literals of a module that read as text: they have a space."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, re.sub(r"`[^`\n]*`", "` `", node.value)


def in_source() -> Iterator[str]:
    """Phrases in docstrings and messages of the source, as "file:line: phrase -> term"."""
    for path in sorted((ROOT / "packages").rglob("*.py")):
        for line, text in strings(path.read_text()):
            for phrase, instead in find(text):
                yield f"{path.relative_to(ROOT)}:{line}: {phrase!r} -> {instead}"


def in_test_names() -> Iterator[str]:
    """Phrases in the names of test files and of tests."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        names = [path.stem, *re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)]
        for name in names:
            for phrase, instead in find(name.replace("_", " ")):
                yield f"{path.relative_to(ROOT)}: {name}: {phrase!r} -> {instead}"


def main() -> None:
    """List phrases."""
    if "src" in sys.argv[1:]:
        print(*in_source(), *in_test_names(), sep="\n")
    else:
        for path in documents():
            for number, line in enumerate(prose(path.read_text()).splitlines(), 1):
                for phrase, instead in find(line):
                    print(f"{path.relative_to(ROOT)}:{number}: {phrase!r} -> {instead}")


if __name__ == "__main__":
    main()
