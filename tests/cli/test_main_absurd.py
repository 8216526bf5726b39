"""Absurd values: whatever is given to an option or argument of a command, the answer is a result or one line, never a traceback."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.cli.calling import Done
from tests.cli.walking import COMMANDS

import stoker as package
from stoker.cli.command import SOURCE, STORE, PathType
from stoker.errors import MAX_MESSAGE
from stoker.train.run import Run

Stoker = Callable[..., Done]

TINY = {
    "size": "tiny",
    "length": 16,
    "batch_size": 1,
    "steps": 1,
    "valid": 0,
    "precision": "fp32",
    "graph": False,
    "compile": False,
}
CALLS = {
    "pack": ["a.csv", "out"],
    "pack icecube": ["folder", "out", "--recipe", "icecube"],
    "append": ["s.stoker", "a.csv"],
    "inspect": ["s.stoker"],
    "audit": ["script.py"],
    "diagnose": ["gone.py", "--quiet"],
    "compare": ["--quiet", "gone.py", "new.py"],
    "gate": ["gone.py", "--budget", "budget.json", "--quiet"],
    "watch": ["gone.py"],
    "train": ["config.yaml", "--quiet"],
    "train tfa": ["config.yaml", "--quiet"],
    "train time-moe": [
        *("--data", "s.stoker", *(f"--set={name}={str(value).lower()}" for name, value in TINY.items())),
        *("--device", "cpu", "--folder", "out", "--quiet"),
    ],
    "train timehut": ["--data", "gone.tsv", "--set", "epochs=1", "--quiet"],
    "train icecube": ["--data", "gone.stoker", "--quiet"],
    "train tabular": ["--target", "gone.csv", "--set", "epochs=1", "--quiet"],
    "tune batch": ["config.yaml", "--json"],
    "tune batch icecube": ["--data", "gone.stoker", "--json"],
    "tune search": ["config.yaml", "--json"],
    "tune search timehut": ["--data", "gone.tsv", "--json"],
    "predict": ["folder", "--data", "s.stoker"],
    "export": ["folder", "out"],
    "export tfa": ["tfa-run", "out"],
    "export time-moe": ["moe-run", "out"],
    "runs": ["folder"],
    "live": ["gone", "--save", "page.html"],
    "icecube make": ["made", "--files", "1", "--events", "3", "--quiet"],
    "tabular generate": ["folder", "made.parquet"],
    "tabular quality": ["a.csv", "a.csv", "--key", "k"],
    "tfa indicators": ["s.stoker", "out", "--spec", "spec.json"],
    "tfa verify": ["config.yaml"],
    "time-moe forecast": ["folder", "--data", "s.stoker"],
    "timehut embed": ["folder", "e.npy", "--data", "s.stoker"],
}
"""A call of each command that ends soon: rightly, or because of something else that is wrong."""
VERSIONS = ("pack icecube", "export tfa", "export time-moe")
"""Versions of recipes that the arguments choose, not a name after the command."""

NUMBERS = ["0", "-1", "1" + "0" * 30, "-1" + "0" * 30, "nan", "inf", "", "five", "1e400"]
PATHS = ["", "\0", "a\0b", "x" * 5000, "s3://bucket/a", "http://host/a", "file:///etc/hosts", "folder", "a.csv", "a.csv/x", "gone"]
NEVER = ["", "\0", "a\0b", "s3://bucket/a", "http://host/a", "file:///etc/hosts"]
"""What is a path nowhere."""


def parameters(*, paths: bool) -> list[tuple[str, click.Parameter]]:
    def wanted(one: click.Parameter) -> bool:
        numbers = isinstance(one.type, click.types.IntParamType | click.types.FloatParamType) or one.name == "memory"
        path = isinstance(one.type, PathType) and one.type not in (STORE, SOURCE) and one.expose_value
        return path if paths else numbers

    return [(name, one) for name, command in COMMANDS.items() for one in command.params if wanted(one)]


def call_with(name: str, parameter: click.Parameter, value: str) -> list[str]:
    words = list(CALLS[name])
    if isinstance(parameter, click.Option):
        option = parameter.opts[0]
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
        # Options come first: after the name of a script they would belong to the script.
        positional = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
        words = [*words[len(positional) :], *positional]
    else:
        arguments = [one for one in COMMANDS[name].params if isinstance(one, click.Argument)]
        words[arguments.index(parameter)] = value
    return [*(name if name not in VERSIONS else name.split()[0]).split(), *words]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.csv").write_text("k,close\n" + "".join(f"a,{i % 3}\n" for i in range(64)))
    package.pack(folder / "a.csv", folder / "s.stoker", columns="close")
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    Path("spec.json").write_text('{"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}')
    Path("config.yaml").write_text("data:\n  store: gone.stoker\n")
    Path("script.py").write_text("raise SystemExit('never run to its end')\n")
    for name, recipe in (("folder", None), ("tfa-run", "tfa"), ("moe-run", "time-moe")):
        Path(name).mkdir()
        if recipe is not None:
            Path(name, "recipe.json").write_text(f'{{"recipe": "{recipe}"}}')
    return tmp_path


def check(done: Done) -> None:
    assert "Traceback" not in done.out + done.err
    assert done.code in (0, 1, 2, 3)
    if done.code == 2:
        assert done.err.startswith("stoker: ")
        assert done.err.count("\n") == 1
        assert len(done.err) < 2 * MAX_MESSAGE


@pytest.mark.promise("P6")
@pytest.mark.parametrize(("name", "parameter"), parameters(paths=False), ids=lambda one: getattr(one, "name", one))
def test_absurd_numbers(stoker: Stoker, folder: Path, name: str, parameter: click.Parameter) -> None:
    for value in NUMBERS:
        words = call_with(name, parameter, value)
        done = stoker(*words)
        check(done)
        if value in ("", "five"):
            assert done.code == 2, words


@pytest.mark.promise("P6")
@pytest.mark.parametrize(("name", "parameter"), parameters(paths=True), ids=lambda one: getattr(one, "name", one))
def test_absurd_paths(stoker: Stoker, folder: Path, name: str, parameter: click.Parameter) -> None:
    before = sorted(path.name for path in folder.iterdir())
    for value in PATHS:
        done = stoker(*call_with(name, parameter, value))
        check(done)
        if value in NEVER:
            assert done.code == 2
            assert sorted(path.name for path in folder.iterdir()) == before, "nothing is made"
        before = sorted(path.name for path in folder.iterdir())


FILES = {"FILE", "FOLDER", "PATH", "RUN", "STORE", "SCRIPT.py"}
"""What stands for a path in a help text."""


@pytest.mark.promise("P6")
def test_every_option_that_names_a_file_has_the_type_of_paths() -> None:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            if isinstance(parameter, click.Argument) or parameter.metavar in FILES:
                assert not isinstance(parameter.type, click.types.StringParamType), f"{name}: is {parameter.name} a path?"


@pytest.mark.promise("P6", control=True)
def test_negative_control_without_the_type_a_url_becomes_a_folder(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker._disk.check_path", Path)
    assert stoker("icecube", "make", "s3://bucket/a", "--files", "1", "--events", "3", "--quiet").code == 0
    assert (folder / "s3:" / "bucket" / "a").is_dir()


@pytest.mark.parametrize(
    "store", ["", "\0", "a\0b", "s3://", "s3://me:SECRET@bucket/a", "https://host/a?sig=SECRET", "nosuch://host/a"]
)
def test_a_target_that_is_neither_a_path_nor_a_url_of_a_store_is_refused(stoker: Stoker, folder: Path, store: str) -> None:
    done = stoker("pack", "a.csv", store)
    check(done)
    assert done.code == 2
    assert "SECRET" not in done.err


@pytest.mark.promise("P6", control=True)
def test_negative_control_a_value_that_is_not_checked_ends_in_a_traceback(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.store.pack.options.MAX_THREADS", 10**9)
    monkeypatch.setattr("stoker._disk.check_path", Path)
    monkeypatch.setattr("stoker.store.pack.api.check_path", Path)
    with pytest.raises(ValueError, match="null"):
        stoker("pack", "a.csv", "a\0b")


def test_a_long_message_is_cut_in_its_middle(stoker: Stoker, folder: Path) -> None:
    Path("a.csv").write_text("x" * 100_000 + "\n1\n")
    for words in (["pack", "a.csv", "out", "--series", "k"], ["pack", "a.csv", "out", "--delimiter", "y" * 100_000]):
        done = stoker(*words)
        assert done.code == 2
        assert "characters left out…]" in done.err
        assert len(done.err) < 2 * MAX_MESSAGE


WRONG_CALLS = {
    "unpack": "did you mean pack?",
    "waves": "No such command 'waves'",
    "tune serch": "did you mean search?",
    "train timehutt": "did you mean the recipe timehut?",
    "train waves": "waves is neither a file nor an installed recipe",
    "tune batch timehut": "the recipe timehut has no `stoker tune batch`",
    "pack": "Missing argument",
    "pack a.csv": "Missing argument",
    "pack a.csv out --fast": "No such option",
    "pack a.csv out --missing guess": "--missing",
    "pack a.csv out --series k --ray dask": "expected 'ray'",
    "pack a.csv out --recipe waves": "'waves' is not one of the installed recipes",
    "pack a.csv out --recipe icecube --series k": "No such option",
    "append s.stoker a.csv --pack evil=1": "--pack evil is not an option of pack",
    "predict folder --data a.csv --pack sort": "expected NAME=VALUE",
    "append s.stoker": "Give the SOURCE of the new rows, or --compact",
    "inspect": "Missing argument",
    "audit gone.py": "gone.py",
    "diagnose --report why.txt script.py": "why.txt ends in '.txt'",
    "diagnose --apply a.txt script.py": "expected a name that ends in .patch or .diff",
    "diagnose --budget 9 script.py": "--budget was given without --try or --apply",
    "diagnose -": "standard input",
    "gate --budget gone.json script.py": "gone.json",
    "watch folder": "is not the folder of a run",
    "watch --once gone.py": "--once is for the folder of a run",
    "live gone": "is not a folder",
    "train": "train --help",
    "train config.yaml --resume folder": "train --help",
    "train config.yaml --set batchsize=3": "did you mean data.batch_size?",
    "train --resume folder": "folder has no config.yaml",
    "train tfa gone.yaml": "gone.yaml does not exist",
    "train icecube": "Give --data STORE, or --resume FOLDER.",
    "train icecube --data gone.stoker --set size=7m": "size is '7m'",
    "train icecube --data gone.stoker --set epochs=many": "--set: epochs is the string 'many'; expected an integer",
    "train icecube --data gone.stoker --set data=x": "--set data cannot be set",
    "train timehut": "Give either --data FILE",
    "train timehut --data gone.tsv --set wdth=3": "--set wdth is not known; did you mean width?",
    "train time-moe --data s.stoker --set size=51m": "size is '51m'",
    "train tabular": "Give --target FILE, or --resume FOLDER.",
    "train tabular --target a.csv --key id": "has no column 'id'",
    "train tabular --target a.csv --encoding k": "expected COLUMN=KIND",
    "tabular generate folder new.csv --rebalance k=b": "expected COLUMN=VALUE:SHARE",
    "tabular generate folder new.txt": "expected a name that ends in .parquet or .csv",
    "tabular generate folder new.csv": "folder has no recipe.json",
    "tfa indicators a.csv out --spec gone.json": "gone.json cannot be read",
    "time-moe forecast folder --data s.stoker": "folder is neither a run of Time-MoE",
    "time-moe forecast folder --data s.stoker --device banana": "--device is 'banana'",
    "time-moe forecast folder --data s.stoker --score --plot f.svg": "--score",
    "predict folder --data a.csv --out p.txt": "--out is p.txt",
    "predict folder --data a.csv": "folder has no config.yaml",
    "timehut embed folder e.csv --data a.csv": "expected a name that ends in .npy",
    "export folder m.pt2": "folder has no config.yaml",
    "tune search gone.yaml": "gone.yaml does not exist",
}
"""Calls that cannot be meant, and a part of the line that says why."""


@pytest.mark.parametrize("arguments", WRONG_CALLS)
def test_a_wrong_call_is_one_line_and_writes_nothing(stoker: Stoker, folder: Path, arguments: str) -> None:
    before = sorted(folder.rglob("*"))
    done = stoker(*arguments.split())
    check(done)
    assert (done.code, done.out) == (2, "")
    assert WRONG_CALLS[arguments] in done.err
    assert sorted(folder.rglob("*")) == before


OUTPUTS = [
    "predict folder --data s.stoker --out p.csv",
    "predict folder --data s.stoker --plot plots",
    "export folder m.pt2",
    "runs folder --plot r.svg",
    "live folder --save page.html",
    "tune batch config.yaml --out t.yaml",
    "tune search config.yaml --out t.yaml",
    "compare --budget 0 --report why.html script.py script.py",
    "compare --budget 0 --evaluate {checkpoint} --checkpoint out --log judged.jsonl script.py script.py",
    "diagnose --report why.html script.py",
    "diagnose --apply a.patch script.py",
    "tabular generate folder new.csv",
    "tabular generate folder new.csv --context-out who.csv",
    "tabular quality a.csv a.csv --report q.html",
    "timehut embed folder e.npy --data s.stoker",
    "time-moe forecast folder --data s.stoker --plot f.svg",
]
"""Calls that name a file to write."""
INPUTS = {
    "--data",
    "--folder",
    "--resume",
    "--budget",
    "--spec",
    "--target",
    "--context",
    "--given",
    "--holdout",
    "--test",
    "--archive",
    "--patch",
    "--python-before",
    "--python-after",
    "--check",
    "--checkpoint",
    "--hold-out",
}


def test_every_option_that_writes_a_file_is_among_the_outputs() -> None:
    """A new one is added there, so that the next test refuses what it would replace."""
    for path, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.type, PathType) and not set(option.opts) & INPUTS:
                assert any(call.startswith(f"{path} ") and option.opts[0] in call.split() for call in OUTPUTS), (path, option.opts)


def put(kind: str, path: Path) -> None:
    """Something of the user's at a path: a file, a folder with one, a link to either, to itself or to nothing, or a pipe."""
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
        (path / "precious.txt").write_text("precious")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        theirs = path.with_name("theirs")
        if kind != "link to nothing":
            put(kind.removeprefix("link to a "), theirs)
        path.symlink_to(theirs)


def state_of(folder: Path) -> dict[str, object]:
    """The names, kinds, targets of links and contents below a folder."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.readlink())
        if path.is_symlink()
        else (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("call", OUTPUTS)
def test_nothing_of_the_user_is_replaced_unasked(stoker: Stoker, folder: Path, call: str) -> None:
    words = call.split()
    [name] = [word for word in words if word not in ("a.csv", "s.stoker", "folder", "config.yaml", "script.py") and "." in word][
        -1:
    ] or ["plots"]
    mine = folder / name
    for kind in ("file", "folder", "pipe", "loop", "link to nothing", "link to a file", "link to a folder", "link to a pipe"):
        if kind == "file" and not mine.suffix:
            continue
        put(kind, mine)
        before = state_of(folder)
        done = stoker(*words)
        assert (done.code, done.out) == (2, ""), kind
        assert mine.name in done.err, kind
        assert state_of(folder) == before, kind
        for path in (mine, folder / "theirs"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()


def test_a_file_behind_a_link_is_overwritten_there(stoker: Stoker, folder: Path) -> None:
    """The link is the user's, who asked for the file to be replaced. A pipe is not replaced either way."""
    Run(folder / "runs" / "a").metrics.write(1, {"loss": 1.0})
    assert stoker("live", "runs", "--save", "plain.html").code == 0
    (folder / "page.html").symlink_to("theirs.html")
    (folder / "theirs.html").write_bytes((folder / "plain.html").read_bytes())
    assert stoker("live", "runs", "--save", "page.html").code == 0
    assert (folder / "page.html").is_symlink()
    pytest.importorskip("matplotlib")
    (folder / "r.svg").symlink_to("theirs.svg")
    (folder / "theirs.svg").write_text("precious")
    assert stoker("runs", "runs", "--plot", "r.svg", "--overwrite").code == 0
    assert (folder / "r.svg").is_symlink()
    assert "<svg" in (folder / "theirs.svg").read_text()
    os.mkfifo(folder / "pipe.csv")
    done = stoker("predict", "folder", "--data", "s.stoker", "--out", "pipe.csv", "--overwrite")
    assert (done.code, "not a plain file" in done.err) == (2, True)
