"""Edits by position: the rest of a file stays byte for byte, `git apply` takes the patch, and its reversal restores the file."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.diagnose.source_edits import (
    Edit,
    SourceFile,
    check_edits,
    edited,
    edited_bytes,
    line_after,
    torch_import,
    torch_name,
    unified_diff,
    with_keyword,
    within,
)
from stoker.errors import TrainError


def read(folder: Path, text: str | bytes, name: str = "train.py") -> SourceFile:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SourceFile.read(str(file))


def call_of(source: SourceFile, name: str = "f") -> ast.Call:
    return next(one for one in ast.walk(source.tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == name)


def keyword(folder: Path, text: str) -> str:
    source = read(folder, text)
    edits = with_keyword(source, call_of(source), "pin", "True")
    check_edits({source.path: source}, edits)
    return edited(source.text, edits)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, 2)", "f(a, 2, pin=True)"),
        ("f()", "f(pin=True)"),
        ("f(a, (2))", "f(a, (2), pin=True)"),
        ("f(a, 2,)", "f(a, 2, pin=True,)"),
        ("f(a, b=(1,  2) )", "f(a, b=(1,  2), pin=True )"),
        ("f(a, pin=False, c=3)", "f(a, pin=True, c=3)"),
        ("f(a, pin = None)", "f(a, pin = True)"),
        ("f(a, pin=True)", "f(a, pin=True)"),
        ("f(a, 'é', b=f2(')'))  # , )", "f(a, 'é', b=f2(')'), pin=True)  # , )"),
        ("f(\n    a,\n    b=2,  # why, )\n)", "f(\n    a,\n    b=2,  # why, )\n    pin=True,\n)"),
        ("f(\n\ta,\n\tb=2,\n)", "f(\n\ta,\n\tb=2,\n\tpin=True,\n)"),
        ("f(\n    a,\n    b=2  # why\n)", "f(\n    a,\n    b=2, pin=True  # why\n)"),
        ("f(a,\n  b=2,\n  )", "f(a,\n  b=2,\n  pin=True,\n  )"),
        ("f(a, b=2,\n  )", "f(a, b=2, pin=True,\n  )"),
        ("f(a\n  , b=2\n  ,\n)", "f(a\n  , b=2, pin=True\n  ,\n)"),
        ("f(\n    [1,\n     2],\n)", "f(\n    [1,\n     2], pin=True,\n)"),
        ("f(a, \\\n  b)", "f(a, \\\n  b, pin=True)"),
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
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            assert source.call_ending_at(node.end_lineno or 0, node.end_col_offset or 0) is node
    assert source.source_of(call_of(source, "é")) == "é(4)"
    with pytest.raises(TrainError, match="line 1 has no call"):
        source.call_ending_at(1, 3)


def test_a_line_is_added_with_the_indentation_of_its_statement(tmp_path: Path) -> None:
    source = read(tmp_path, "if a:\r\n\tm = f(\r\n\t1)  # why\r\n\tn = 2\r\nelse: o = 3")
    statements = {ast.unparse(one): one for one in ast.walk(source.tree) if isinstance(one, ast.Assign)}
    assert edited(source.text, [line_after(source, statements["m = f(1)"], "m.c()")]) == source.text.replace(
        "# why\r\n", "# why\r\n\tm.c()\r\n"
    )
    with pytest.raises(TrainError, match="line 5 has more than one statement"):
        line_after(source, statements["o = 3"], "p")
    shared = read(tmp_path, "a = 1; b = 2")
    with pytest.raises(TrainError, match="more than one statement"):
        line_after(shared, shared.tree.body[0], "p")


def test_a_file_without_a_last_line_end_still_has_none(tmp_path: Path) -> None:
    source = read(tmp_path, "import torch\nx = f(1)")
    after = edited(source.text, [line_after(source, source.tree.body[1], "x.c()")])
    assert after == "import torch\nx = f(1)\nx.c()"


@pytest.mark.parametrize(
    ("text", "name", "last"),
    [
        ("import os\nimport torch\nfrom a import b\nx = 1\nimport c\n", "torch", "from a import b"),
        ("import torch as T\n", "T", "import torch as T"),
        ("import torch.nn as nn\nimport torch.optim\n", "torch", "import torch.optim"),
        ("'''docs'''\nfrom __future__ import annotations\nimport os\nos.x = 1\nimport torch\n", "torch", "import torch"),
        ("from torch import nn\nimport torch.optim as O\nx = 1\n", None, "import torch.optim as O"),
    ],
)
def test_the_name_of_torch_and_the_end_of_the_imports(text: str, name: str | None, last: str, tmp_path: Path) -> None:
    source = read(tmp_path, text)
    found, at = torch_import(source)
    assert (found, ast.unparse(at)) == (name, last)
    named, edits = torch_name(source)
    assert (named, "import torch\n" in edited(text, edits)) == (
        name or "torch",
        name is None or (name == "torch" and "import torch\n" in text),
    )


def test_a_file_without_imports_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="no import"):
        torch_import(read(tmp_path, "x = 1\n"))


def test_lines_go_under_a_with(tmp_path: Path) -> None:
    text = "for x in y:\n    out = f(\nx)\n\n    # why\n    loss = g(out)  # é\n    loss.backward()\n"
    source = read(tmp_path, text)
    loop = source.tree.body[0]
    assert isinstance(loop, ast.For)
    after = edited(text, within(source, loop.body[0], loop.body[1], "with a:"))
    assert after == (
        "for x in y:\n    with a:\n        out = f(\n    x)\n\n        # why\n        loss = g(out)  # é\n    loss.backward()\n"
    )
    tabs = read(tmp_path, text.replace("    ", "\t"))
    loop = tabs.tree.body[0]
    assert isinstance(loop, ast.For)
    assert "\n\twith a:\n\t\tout = f(" in edited(tabs.text, within(tabs, loop.body[0], loop.body[1], "with a:"))


def test_a_string_of_several_lines_is_not_indented(tmp_path: Path) -> None:
    source = read(tmp_path, "out = f('''a\nb''')\nx = 1\n")
    with pytest.raises(TrainError, match="string of several lines"):
        within(source, source.tree.body[0], source.tree.body[0], "with a:")


def test_edits_of_the_same_characters_are_refused() -> None:
    first, second = Edit(file="a", start=0, end=4, text="x"), Edit(file="a", start=2, end=3, text="y")
    with pytest.raises(TrainError, match="same characters"):
        edited("abcdef", [second, first])
    assert edited("abcdef", [first, first]) == "xef"


def test_an_argument_that_two_edits_give_is_refused(tmp_path: Path) -> None:
    source = read(tmp_path, "f(1)")
    edits = [*with_keyword(source, call_of(source), "a", "True"), *with_keyword(source, call_of(source), "a", "b > 0")]
    with pytest.raises(TrainError, match="the same argument"):
        check_edits({source.path: source}, edits)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"# coding: no-such\n", b"x = (", b"x = '\x00'"])
def test_a_file_that_is_not_python_is_refused(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="cannot be read as Python"):
        read(tmp_path, text)


# ---- patches ----

PROGRAM = (
    "{cookie}'''docs é'''{end}import torch{end}{end}def main():{end}{tab}# comment é{end}"
    "{tab}x = f(a,{end}{tab}{tab}b=2){end}{tab}y = g(3){last}"
)
FORMS = st.fixed_dictionaries(
    {
        "cookie": st.sampled_from(["", "# coding: latin-1\n", "# -*- coding: utf-8 -*-\n"]),
        "end": st.sampled_from(["\n", "\r\n", "\r"]),
        "tab": st.sampled_from(["\t", "    ", "  "]),
        "last": st.sampled_from(["", "\n", "\r\n", "\n\n"]),
    }
)


def git(folder: Path, *words: str) -> None:
    done = subprocess.run(["git", "-c", "core.autocrlf=false", *words], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def round_trip(folder: Path, source: SourceFile, edits: list[Edit], *, root: Path | None = None) -> bytes:
    """Apply the patch, compare, and take it back."""
    patch = unified_diff({source.path: source}, edits, root or folder)
    (folder / "a.patch").write_bytes(patch)
    git(root or folder, "apply", str(folder / "a.patch"))
    after = Path(source.path).read_bytes()
    assert after == edited_bytes(source.data, edits) != source.data
    git(root or folder, "apply", "-R", str(folder / "a.patch"))
    assert Path(source.path).read_bytes() == source.data
    return patch


@given(form=FORMS, bom=st.booleans(), which=st.sets(st.sampled_from(["keyword", "line", "within"]), min_size=1))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_git_applies_a_patch_and_takes_it_back(form: dict[str, str], bom: bool, which: set[str], tmp_path: Path) -> None:
    encoding = "latin-1" if "latin" in form["cookie"] else "utf-8-sig" if bom else "utf-8"
    source = read(tmp_path, PROGRAM.format(**form).encode(encoding))
    function = source.tree.body[2]
    assert isinstance(function, ast.FunctionDef)
    first, last = function.body
    edits = with_keyword(source, call_of(source), "c", "True") if "keyword" in which else []
    edits += [line_after(source, last, "x.c()")] if "line" in which else []
    edits += within(source, first, last, "with z:") if "within" in which else []
    check_edits({source.path: source}, edits)
    after = edited_bytes(source.data, edits)
    assert ast.parse(after)
    assert after.decode(encoding).count("é") == 2  # the same letters in the same encoding
    assert (b"\r" in after) == (b"\r" in source.data)
    round_trip(tmp_path, source, edits)


@pytest.mark.parametrize("name", ["my train.py", 'say "hi".py', "tränen.py", "a\tb.py"])
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


def test_a_patch_is_the_same_each_time_and_has_no_more_than_its_lines(tmp_path: Path) -> None:
    lines = [f"x{number} = {number}\n\n" for number in range(400)]
    source = read(tmp_path, "".join([*lines, "y = f(1)\n", *lines]))
    edits = with_keyword(source, call_of(source), "c", "True")
    first, second = (unified_diff({source.path: source}, edits, tmp_path) for _ in range(2))
    assert first == second
    assert [one for one in first.splitlines() if one[:1] in b"+-"][2:] == [b"-y = f(1)", b"+y = f(1, c=True)"]
