"""The ledger: lines are added whole, and a line that was changed is noticed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.compare.ledger import append_to_ledger, read_ledger
from stoker.errors import OptionError

APPENDS = """
import sys
from pathlib import Path
from stoker.compare.ledger import append_to_ledger
print("started", flush=True)
for number in range(int(sys.argv[2])):
    append_to_ledger(Path(sys.argv[1]), {"value": number, "text": "x" * 3000})
"""


def appending(path: Path, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", APPENDS, str(path), str(number)], stdout=subprocess.PIPE, text=True)


def test_lines_are_numbered_and_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_ledger(path) == []
    lines = [append_to_ledger(path, {"status": status}) for status in (0, 4)]
    assert read_ledger(path) == lines
    assert [line["number"] for line in lines] == [1, 2]
    assert lines[1]["previous"] != lines[0]["previous"]


@pytest.mark.promise("P35")
@pytest.mark.parametrize("change", ["edited", "removed", "swapped"])
def test_a_line_that_was_changed_later_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "results.jsonl"
    for status in range(4):
        append_to_ledger(path, {"status": status})
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "edited": [lines[0], lines[1].replace('"status": 1', '"status": 0'), *lines[2:]],
        "removed": [lines[0], *lines[2:]],
        "swapped": [lines[0], lines[2], lines[1], lines[3]],
    }
    path.write_text("".join(changed[change]))
    with pytest.raises(OptionError, match=r"line [23] does not follow the line before it") as caught:
        append_to_ledger(path, {"status": 9})
    assert caught.value.path == str(path)


@pytest.mark.parametrize("text", ['{"note": 1}\n', '{"note": 1}', "my notes", "7"], ids=["lines", "object", "text", "number"])
def test_another_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    """A last line without an end is one of a killed process only if it is the beginning of a judgement."""
    path = tmp_path / "notes.jsonl"
    path.write_text(text)
    with pytest.raises(OptionError, match="line 1 is not a judgement"):
        append_to_ledger(path, {})
    assert path.read_text() == text


def test_a_torn_last_line_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = append_to_ledger(path, {"status": 0})
    with path.open("a") as file:
        file.write('{"number": 2, "sta')
    second = append_to_ledger(path, {"status": 1})
    assert read_ledger(path) == [first, second]


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for _ in range(3):
        process = appending(path, 10_000)
        before = len(read_ledger(path))
        while len(read_ledger(path)) < before + 5:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    number = len(read_ledger(path))
    assert append_to_ledger(path, {})["number"] == number + 1
    assert all(len(json.loads(line)["previous"]) == 16 for line in path.read_text().splitlines())


def test_lines_of_several_processes_come_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    processes = [appending(path, 20) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    assert [line["number"] for line in read_ledger(path)] == list(range(1, 61))
