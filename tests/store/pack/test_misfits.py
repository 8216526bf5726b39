"""Words among numbers: all of a pack in one error, with rows and lines, and an advice that works at once."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.store.shrink import shrunk

import stoker
from stoker.errors import BadValueError, SourceError
from stoker.store import find_sources
from stoker.store.pack import misfits


def several_words(folder: Path) -> str:
    """Files with two words in one column, one in another, and one far behind the first block."""
    (folder / "a.csv").write_text("x,y\n" + "".join(f"{i}.5,{i}\n" for i in range(100)) + "off,3\n\n-,n/k\n")
    (folder / "b.csv").write_text("x,y\n" + "".join(f"{i}.5,{i}\n" for i in range(100)) + '1.5,"far\naway"\n')
    return str(folder / "*.csv")


def test_all_words_of_all_files_are_in_one_error(tmp_path: Path) -> None:
    source = several_words(tmp_path)
    with pytest.raises(SourceError) as error:
        stoker.pack(source, tmp_path / "out")
    text = str(error.value)
    for word, row, line in (("'off'", 101, 102), ("'-'", 102, 104), ("'n/k'", 102, 104), (r"'far\naway'", 101, 102)):
        assert f"{word} in row {row} (line {line})" in text
    null = ["off", "-", "n/k", "far\naway"]
    assert f"Csv(null={null!r})" in text
    store = stoker.pack(source, tmp_path / "out", csv=stoker.Csv(null=null))
    assert (store.schema["x"].missing, store.schema["y"].missing) == (2, 2)


def test_negative_control_the_first_word_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = several_words(tmp_path)
    real = misfits.find_misfits
    monkeypatch.setattr(misfits, "find_misfits", lambda *given: ([real(*given)[0][0]], True))
    with pytest.raises(SourceError) as error:
        stoker.pack(source, tmp_path / "out")
    with pytest.raises(SourceError):  # the advice leads to the next word
        stoker.pack(source, tmp_path / "out", csv=stoker.Csv(null=["off"] if "'off'" in str(error.value) else ["-"]))


def test_words_without_end_are_counted_up_to_a_limit_and_offered_as_words_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{i}.5\n" for i in range(400)) + "".join(f"name{i}\n" for i in range(50)))
    with pytest.raises(BadValueError, match=r"at least 8 words.*'name7' in row 408 .*dtype=.'x': 'category'.") as error:
        stoker.pack(tmp_path / "a.csv", tmp_path / "out")
    assert "null=" not in str(error.value)  # as eight names would not be all


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".jsonl"])
@pytest.mark.parametrize("small", [False, True])
def test_the_line_of_a_row_is_that_of_an_editor(tmp_path: Path, suffix: str, small: bool, rng: Any) -> None:
    rows, lines = [], [] if suffix == ".jsonl" else ["x,s"]
    for i in range(60):
        lines += [rng.choice(["", "\r"])] * int(rng.integers(0, 3))
        rows.append(sum(line.count("\n") + 1 for line in lines) + 1)
        word = "a\nb" if rng.random() < 0.3 and suffix != ".jsonl" else "a"
        lines.append(json.dumps({"x": i, "s": word}) if suffix == ".jsonl" else f'{i},"{word}"')
    text = "\n".join(lines) + ("\n" if rng.random() < 0.5 else "")
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    [source] = find_sources(path)
    with shrunk(line_bytes=1024, chunk_bytes=64) if small else contextlib.nullcontext():
        assert [source.line_of(row + 1) for row in range(60)] == rows
    assert source.line_of(61) is None


def test_an_error_with_a_row_has_its_line_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,x\n\n1,1\n1,2\n")
    with pytest.raises(SourceError) as error:
        stoker.pack(tmp_path / "a.csv", tmp_path / "out", time="t")
    assert (error.value.row, error.value.line) == (2, 4)
    assert str(error.value).endswith(" Row 2 begins in line 4 of the file.")
