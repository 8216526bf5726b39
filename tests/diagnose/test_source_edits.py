"""Edits by position: the rest of a file stays byte for byte, `git apply` takes the patch, and its reversal restores the file."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.diagnose.edit_sites import CallSite
from stoker.diagnose.source_edits import Change, SourceFile, edited, line_after, torch_name, unified_diff, with_keyword
from stoker.errors import TrainError


def read(folder: Path, text: str | bytes, name: str = "train.py") -> SourceFile:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SourceFile.read(str(file))


def call_of(source: SourceFile, name: str = "f") -> cst.Call:
    calls = [node for node in source.positions if isinstance(node, cst.Call)]
    return next(call for call in calls if source.text_of(call.func) == name)


def text_after(source: SourceFile, *changes: Change) -> str:
    return edited({source.path: source}, changes)[source.path].decode(source.module.encoding)


def keyword(folder: Path, text: str) -> str:
    source = read(folder, text)
    changes = with_keyword(source, call_of(source), "pin", "True")
    return text_after(source, *changes) if changes else text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, 2)", "f(a, 2, pin=True)"),
        ("f()", "f(pin=True)"),
        ("f(a, 2,)", "f(a, 2, pin=True,)"),
        ("f(a, b=(1,  2) )", "f(a, b=(1,  2), pin=True )"),
        ("f(a, pin=False, c=3)", "f(a, pin=True, c=3)"),
        ("f(a, pin=True)", "f(a, pin=True)"),
        ("f(a, 'é', b=f2(')'))  # , )", "f(a, 'é', b=f2(')'), pin=True)  # , )"),
        ("f(\n    a,\n    b=2,  # why, )\n)", "f(\n    a,\n    b=2,  # why, )\n    pin=True,\n)"),
        ("f(\n    a,\n    b=2  # why\n)", "f(\n    a,\n    b=2, pin=True  # why\n)"),
        ("f(a,\n  b=2,\n  )", "f(a,\n  b=2,\n  pin=True,\n  )"),
        ("f(a\n  , b=2\n  ,\n)", "f(a\n  , b=2, pin=True\n  ,\n)"),
        ("f(\n    [1,\n     2],\n)", "f(\n    [1,\n     2],\n    pin=True,\n)"),
    ],
)
def test_a_call_gets_a_keyword_and_keeps_its_form(before: str, after: str, tmp_path: Path) -> None:
    assert keyword(tmp_path, before) == after
    assert keyword(tmp_path, before.replace("\n", "\r\n")) == after.replace("\n", "\r\n")
    assert keyword(tmp_path, f"if 1:\n\tx = {before}") == f"if 1:\n\tx = {after}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f(*a)", "passes \\* or \\*\\*"),
        ("f(a, **options)", "may contain pin"),
        ("f(a, pin=cuda())", "line 1 computes pin"),
        ("f(x for x in y)", "would not be Python"),
    ],
)
def test_an_unclear_call_is_not_edited(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=why):
        keyword(tmp_path, text)


def test_calls_are_found_by_their_end(tmp_path: Path) -> None:
    text = "x = (a.b(1)\n  .c(2)(3)\n)  # é\ny = 'é'; z = é(4)\n"
    source = read(tmp_path, text)
    for node in ast.walk(ast.parse(text)):  # the positions that frames have
        if isinstance(node, ast.Call):
            site = CallSite(file=source.path, line=node.end_lineno or 0, column=node.end_col_offset or 0, own=True)
            call = source.call_at(site)
            assert ast.unparse(ast.parse(f"({source.text_of(call)})", mode="eval")) == ast.unparse(node)
    with pytest.raises(TrainError, match="line 1 has no call"):
        source.call_at(CallSite(file=source.path, line=1, column=3, own=True))


def test_a_line_is_added_with_the_indentation_of_its_statement(tmp_path: Path) -> None:
    source = read(tmp_path, "if a:\r\n\tm = f(\r\n\t1)  # why\r\n\tn = 2; k = 4\r\nelse: o = g()")
    line = source.statement_of(call_of(source))
    twice = line_after(source, line, "m.c()"), line_after(source, line, "m.c()")
    assert text_after(source, *twice, line_after(source, line, "m.d()")) == source.module.code.replace(
        "# why\r\n", "# why\r\n\tm.c()\r\n\tm.d()\r\n"
    )
    with pytest.raises(TrainError, match="line 5 is part of a longer statement"):
        source.statement_of(call_of(source, "g"))


@pytest.mark.parametrize(
    ("text", "name", "last"),
    [
        ("import os\nimport torch\nfrom a import b\nx = 1\nimport c\n", "torch", "from a import b"),
        ("import torch as T\n", "T", "import torch as T"),
        ("import torch.nn as nn\nimport torch.optim\n", None, "import torch.optim"),
        ("'''docs'''\nfrom __future__ import annotations\nimport os\nos.x = 1\nimport torch\n", "torch", "import torch"),
        ("from torch import nn\nimport torch.optim as O\nx = 1\n", None, "import torch.optim as O"),
    ],
)
def test_the_name_of_torch_and_the_end_of_the_imports(text: str, name: str | None, last: str, tmp_path: Path) -> None:
    source = read(tmp_path, text)
    used, changes, line = torch_name(source)
    assert (used, bool(changes), source.text_of(line).strip().splitlines()[-1]) == (name or "torch", name is None, last)
    assert not changes or f"{last}\nimport torch\n" in text_after(source, *changes)


def test_a_file_without_imports_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="no import"):
        torch_name(read(tmp_path, "x = 1\n"))


def test_an_argument_that_two_edits_give_is_refused(tmp_path: Path) -> None:
    source = read(tmp_path, "f(1)")
    changes = [*with_keyword(source, call_of(source), "a", "True"), *with_keyword(source, call_of(source), "a", "b > 0")]
    with pytest.raises(TrainError, match="the same argument"):
        text_after(source, *changes)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"# coding: no-such\n", b"x = (", b"x = '\x00'", b"x = 1\ry = 2\r"])
def test_a_file_that_cannot_be_kept_as_it_is_is_refused(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"cannot be (read as Python|written again)"):
        read(tmp_path, text)


# ---- patches ----

PROGRAM = (
    "{cookie}'''docs é'''{end}import torch{end}{end}def main():{end}{tab}# comment é{end}"
    "{tab}x = f(a,{end}{tab}{tab}b=2){end}{tab}y = g(3){last}"
)
FORMS = st.fixed_dictionaries(
    {
        "cookie": st.sampled_from(["", "# coding: latin-1\n", "# -*- coding: utf-8 -*-\n"]),
        "end": st.sampled_from(["\n", "\r\n"]),
        "tab": st.sampled_from(["\t", "    ", "  "]),
        "last": st.sampled_from(["", "\n", "\r\n", "\n\n"]),
    }
)


def git(folder: Path, *words: str) -> None:
    done = subprocess.run(["git", "-c", "core.autocrlf=false", *words], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def round_trip(folder: Path, source: SourceFile, changes: list[Change], *, root: Path | None = None) -> bytes:
    """Apply the patch, compare, and take it back."""
    sources = {source.path: source}
    patch = unified_diff(sources, edited(sources, changes), root or folder)
    (folder / "a.patch").write_bytes(patch)
    git(root or folder, "apply", str(folder / "a.patch"))
    after = Path(source.path).read_bytes()
    assert after == edited(sources, changes)[source.path] != source.data
    git(root or folder, "apply", "-R", str(folder / "a.patch"))
    assert Path(source.path).read_bytes() == source.data
    return patch


@pytest.mark.promise("P19")
@given(form=FORMS, bom=st.booleans(), which=st.sets(st.sampled_from(["keyword", "line"]), min_size=1))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_git_applies_a_patch_and_takes_it_back(form: dict[str, str], bom: bool, which: set[str], tmp_path: Path) -> None:
    encoding = "latin-1" if "latin" in form["cookie"] else "utf-8-sig" if bom else "utf-8"
    source = read(tmp_path, PROGRAM.format(**form).encode(encoding))
    first, last = (source.statement_of(call_of(source, name)) for name in "fg")
    changes = with_keyword(source, call_of(source), "c", "True") if "keyword" in which else []
    changes += [line_after(source, last, "x.c()")] if "line" in which else []
    changes += [line_after(source, first, "x.d()")]
    after = edited({source.path: source}, changes)[source.path]
    assert ast.parse(after)
    assert after.decode(encoding).count("é") == 2  # the same letters in the same encoding
    assert (b"\r" in after) == (b"\r" in source.data)
    round_trip(tmp_path, source, changes)


@pytest.mark.parametrize("name", ["my train.py", 'say "hi".py', "tränen.py"])
def test_names_of_files_may_be_odd(name: str, tmp_path: Path) -> None:
    source = read(tmp_path, "x = f(1)\n", name)
    round_trip(tmp_path, source, with_keyword(source, call_of(source), "c", "True"))


def test_a_patch_is_applied_from_the_folder_of_its_names_also_within_a_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    inner = tmp_path / "inner"
    inner.mkdir()
    source = read(inner, "x = f(1)\n")
    patch = round_trip(inner, source, with_keyword(source, call_of(source), "c", "True"), root=inner)
    assert patch.startswith(b"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n")
