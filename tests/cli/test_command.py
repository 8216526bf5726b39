"""What every command shares: -q, -v, the line at the start, standard input, flags with one meaning, completion, suggestions."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.shell_completion import ShellComplete
from tests.cli.calling import SOURCE, Done, call, environment, stoker_command
from tests.cli.walking import COMMANDS

from stoker import extend
from stoker.cli import command as base
from stoker.cli import main as cli
from stoker.store.opening import open_store

Stoker = Callable[..., Done]


every_command = pytest.mark.parametrize("path", COMMANDS)


@pytest.mark.promise("P32")
@every_command
def test_every_command_has_the_shared_options(path: str) -> None:
    command = COMMANDS[path]
    assert isinstance(command, base.Command)
    flags = {flag: one.help for one in command.params if isinstance(one, click.Option) for flag in one.opts}
    shared = {flag: one.help for one in base.volume_options() for flag in one.opts}
    assert set(shared) == {"-q", "--quiet", "-v", "--verbose", "--debug"}
    assert {flag: flags.get(flag) for flag in shared} == shared


@pytest.mark.promise("P32", control=True)
def test_a_command_cannot_be_made_without_its_line() -> None:
    with pytest.raises(TypeError, match="doing"):
        click.command("new", cls=base.Command)(lambda: None)


# The line at the start.


@pytest.mark.promise("P32")
@every_command
def test_the_line_comes_before_the_work(path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[path]
    assert isinstance(command, base.Command)
    base.reset_output()
    said: list[str] = []
    monkeypatch.setattr(command, "callback", lambda **options: said.append(capsys.readouterr().err))
    context = click.Context(command, info_name=path)
    context.params = {one.name: "x" for one in command.params if one.name and one.expose_value}
    command.invoke(context)
    assert said == ([""] if command.doing is None else [f"stoker: {re.sub('{.*?}', 'x', command.doing)} …\n"])


QUICK = {"inspect": ["gone"], "runs": ["."]}


@pytest.mark.promise("P32")
def test_torch_is_not_loaded_before_the_line(tmp_path: Path) -> None:
    """Neither by the modules of the commands, nor when arguments are parsed, nor at all by commands without a line."""
    assert set(QUICK) == {path for path, one in COMMANDS.items() if isinstance(one, base.Command) and one.doing is None}
    code = """
import sys
from tests.cli.test_command import COMMANDS, QUICK
from stoker.cli import command, main
assert "torch" not in sys.modules, "by a module"
def stop(line):
    raise SystemExit("torch" in sys.modules)
for name, words in QUICK.items():
    try: main.main([name, *words])
    except SystemExit: pass
    assert "torch" not in sys.modules, name
command.announce = stop
for call in ("train gone.yaml", "tune search gone.yaml", "tune search timehut --data gone.tsv", "diagnose gone.py", "pack a b"):
    try: main.main(call.split())
    except SystemExit as end: assert end.code is False, call
print("fine")
"""
    done = call([sys.executable, "-c", code], tmp_path, PYTHONPATH=os.pathsep.join([str(SOURCE), str(Path(__file__).parents[2])]))
    assert done.out.splitlines()[-1:] == ["fine"], done.err


def test_the_line_says_what_happens_and_quiet_hides_it(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    done = stoker("pack", prices / "a.csv", prices / "b.csv", tmp_path / "out")
    assert done.began == f"stoker: packing {prices / 'a.csv'} and 1 more into {tmp_path / 'out'} …"
    for flag in ("-q", "--quiet", "--json"):
        done = stoker("pack", prices, tmp_path / "out", "--overwrite", flag)
        assert (done.code, done.began, done.err) == (0, "", "")
        assert done.out
    done = stoker("-q", "inspect", tmp_path / "out", "--verify")
    assert (done.code, done.began, done.err) == (0, "", "")


# -q and -v.


def test_verbose_says_options_phases_and_what_it_took(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    done = stoker("pack", prices, tmp_path / "out", "--series", "symbol", "-v")
    first, *phases, last = done.err.splitlines()
    assert first == f"stoker: given: source {prices}, store {tmp_path / 'out'}, --series symbol"
    assert {line.split()[1].rstrip(":") for line in phases} >= {"reading", "sealing"}
    assert all(line.endswith(" rows") for line in phases)
    assert last.startswith("stoker: pack took ")
    assert " of CPU time, " in last
    plain = stoker("pack", prices, tmp_path / "out", "--series", "symbol", "--overwrite")
    assert (plain.out, plain.err) == (done.out, "")


def test_quiet_and_verbose_contradict_each_other(stoker: Stoker) -> None:
    assert stoker("inspect", "gone", "-q", "-v").err.startswith("stoker: -q and -v contradict each other.")
    assert stoker("-q", "inspect", "gone", "-v").code == 2


# Standard input.

CSV = "user,ts,x\na,1,1.5\nb,1,2.5\na,2,3.5\n"
ROWS = [{"user": "a", "ts": 1, "x": 1.5}, {"user": "b", "ts": 1, "x": 2.5}, {"user": "a", "ts": 2, "x": 3.5}]


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


def arrow_bytes() -> bytes:
    table, sink = pa.Table.from_pylist(ROWS), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


FORMS = {
    ".csv": CSV.encode(),
    ".tsv": CSV.replace(",", "\t").encode(),
    ".jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    ".parquet": parquet_bytes(),
    ".arrow": arrow_bytes(),
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Let these bytes be standard input."""

    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


@pytest.mark.promise("P32")
@pytest.mark.parametrize("form", FORMS)
def test_pack_reads_standard_input(stoker: Stoker, given: Callable[[bytes], None], tmp_path: Path, form: str) -> None:
    given(FORMS[form])
    done = stoker("pack", "-", tmp_path / "out", "--series", "user", "--time", "ts")
    assert done == Done(
        0, f"packed 3 rows into 2 series, 0.0 MB: {tmp_path / 'out'}\nnext: stoker inspect {tmp_path / 'out'}\n", ""
    )
    assert done.began == f"stoker: packing standard input into {tmp_path / 'out'} …"
    store = open_store(tmp_path / "out")
    assert [one["x"].tolist() for one in store] == [[1.5, 3.5], [2.5]]
    assert store.manifest is not None
    assert [one.name for one in store.manifest.sources] == [f"stdin{form}"]
    (tmp_path / f"stdin{form}").write_bytes(FORMS[form])
    assert stoker("pack", tmp_path / f"stdin{form}", tmp_path / "file", "--series", "user", "--time", "ts").code == 0
    assert open_store(tmp_path / "file").digest == store.digest


def test_append_reads_it_too(stoker: Stoker, given: Callable[[bytes], None], tmp_path: Path) -> None:
    given(FORMS[".csv"])
    assert stoker("pack", "-", tmp_path / "out", "--series", "user", "--time", "ts").code == 0
    given(b"user,ts,x\na,3,9\n")
    done = stoker("append", tmp_path / "out", "-")
    assert (done.code, done.err) == (0, "")
    assert [one["x"].tolist() for one in open_store(tmp_path / "out")] == [[1.5, 3.5, 9], [2.5]]


@pytest.mark.promise("P32")
@pytest.mark.parametrize(
    ("data", "arguments", "line"),
    [
        (b"", ["pack", "-", "out"], "- (standard input) is empty."),
        (b" \n", ["pack", "-", "out"], "- (standard input) is empty."),
        (b"\x1f\x8b\x08x", ["pack", "-", "out"], "- (standard input) is compressed with gzip. Decompress it first"),
        (CSV.encode(), ["pack", "-", "-", "out"], "- (standard input) is given twice, but it can be read only once."),
        (CSV.encode(), ["pack", "a.csv", "-"], "- (standard input) cannot be read here; expected the name of a file or folder."),
        (CSV.encode(), ["inspect", "-"], "- (standard input) cannot be read here; expected the name of a file or folder."),
        (b"print(1)", ["gate", "-", "--budget", "b.json"], "- (standard input) cannot be read here; expected the file of a script"),
        (CSV.encode(), ["pack", "-", "out", "--series", "k"], "names 'k', but stdin.csv has the columns user, ts, x."),
    ],
)
def test_what_cannot_be_read_is_one_line(
    stoker: Stoker, given: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes,
    arguments: list[str], line: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given(data)
    done = stoker(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert line in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.promise("P32")
def test_the_saved_input_is_removed(stoker: Stoker, given: Callable[[bytes], None], tmp_path: Path) -> None:
    given(CSV.encode())
    stoker("pack", "-", tmp_path / "out")
    folder = base._output.stdin_folder
    assert folder is not None
    assert not folder.exists()


@pytest.mark.promise("P32")
@every_command
def test_every_input_file_may_be_standard_input(path: str) -> None:
    """An option with a table, a configuration or a spec takes `-`; what names a folder, a script or an output does not."""
    outputs = {
        "--out",
        "--plot",
        "--report",
        "--save",
        "--stats",
        "--context-out",
        "--apply",
        "--patch",
        "--export",
        "--budget",
    }
    others = {
        "--resume",
        "--folder",
        "--archive",
        "--python-before",
        "--python-after",
        "--check",
        "--checkpoint",
        "--hold-out",
        "--log",
    }
    for one in COMMANDS[path].params:
        if isinstance(one, click.Option) and isinstance(one.type, base.PathType):
            expected = not set(one.opts) & (outputs | others) and one.metavar not in ("STORE", "FOLDER")
            assert one.type.takes_stdin is expected, (path, one.opts)


def test_a_pipe_of_a_shell_works(tmp_path: Path) -> None:
    done = subprocess.run(stoker_command("pack", "-", "out", "--series", "user"), cwd=tmp_path, env=environment(), input=CSV.encode(),
                          capture_output=True, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"packed 3 rows into 2 series, 0.0 MB: out\nnext: stoker inspect out\n")


# Flags with one meaning.


def test_calls_of_the_documentation_of_recipes_parse() -> None:
    """The spellings that people have."""
    calls = [
        "train tabular --target events.parquet --key user_id --context users.parquet --set size=m",
        "tabular generate runs/x synthetic.parquet --subjects 10000 --given seed.parquet --temperature 0.9",
        "tabular quality real.parquet synthetic.parquet --key user_id --report quality.html",
        "pack raw.parquet events.stoker --series user --time ts --ray ray",
        "timehut embed runs/x embeddings.npy --data new.tsv",
        "time-moe forecast runs/x --data ett.stoker --series HUFL --horizon 96 --plot f.png",
    ]
    for line in calls:
        words = line.split()
        path = max((known for known in COMMANDS if line.startswith(f"{known} ")), key=len)
        COMMANDS[path].make_context(path, words[len(path.split()) :])


# Suggestions and completion.


@pytest.mark.promise("P32")
@every_command
def test_the_nearest_option_is_suggested(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"pack icecube": "pack --recipe icecube", "export tfa": "export tfa", "export time-moe": "export moe"}.get(path, path)
    for name, recipe in (("tfa", "tfa"), ("moe", "time-moe")):
        Path(name).mkdir()
        Path(name, "recipe.json").write_text(f'{{"recipe": "{recipe}"}}')
    done = stoker(*words.split(), "--quiett")
    assert done.code == 2
    assert "No such option '--quiett'; did you mean --quiet?" in done.err


def completions(*words: str) -> list[str]:
    *before, last = words
    found = ShellComplete(cli.cli, {}, "stoker", "_STOKER_COMPLETE").get_completions(before, last)
    return [one.value if one.type == "plain" else f"<{one.type}>" for one in found]


def test_commands_options_choices_recipes_and_files_are_completed() -> None:
    assert completions("di") == ["diagnose"]
    assert completions("") == [*cli.COMMANDS, *extend.registered("commands")]
    assert completions("tune", "") == ["batch", "search"]
    assert {"--series", "--sort", "--sql"} <= set(completions("pack", "--s"))
    assert completions("pack", "--missing", "") == base.MISSING
    assert completions("train", "tim") == ["time-moe", "timehut", "<file>"]
    assert completions("inspect", "a") == ["<file>"]


def test_completion_in_bash(tmp_path: Path) -> None:
    done = call(stoker_command(), tmp_path, _STOKER_COMPLETE="bash_complete", COMP_WORDS="stoker pack --wid", COMP_CWORD="2")
    assert done.out.split() == ["plain,--wide"]
    assert os.environ.get("_STOKER_COMPLETE") is None


# Scripts.

OPTIONS = {"diagnose": ["--try"], "watch": ["-q"], "audit": ["--epochs", "2"], "gate": ["--budget", "b.json", "--write"]}


@pytest.mark.parametrize("words", [["train.py"], ["-m", "package.module"]], ids=["script", "module"])
@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_after_a_script_are_its_own(name: str, words: list[str]) -> None:
    """As with python and torchrun: the public nanoGPT takes `config/a.py --compile=False`."""
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    own = ["config/a.py", "--compile=False", "--lr", "1e-3", "-q", "--json", "--budget", "x"]
    for separator in ([], ["--"]):
        given = command.make_context(name, [*OPTIONS[name], *words, *separator, *own]).params
        assert given["arguments"] == tuple(own)
        assert given.get("script", given.get("target")) == words[-1]
        assert given["is_module"] == (len(words) == 2)
        assert given.get("as_json") in (None, False)
    # Negative control: before the script they are options of the command.
    with pytest.raises(click.UsageError):
        command.make_context(name, [*OPTIONS[name], "--compile=False", *words])
