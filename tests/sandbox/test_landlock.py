"""Landlock: the kernel refuses changes of the user's files, and the program runs in a mirror of its folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sandbox.home import make_home, state

from stoker.errors import TrainError
from stoker.sandbox import landlock, sandbox
from stoker.sandbox.landlock import make_mirror

SCRIPT = """
import os, sys
from pathlib import Path
home = Path(sys.argv[1])
{change}
"""
CHANGES = {
    "write": "(home / 'model.pt').write_bytes(b'new')",
    "append": "(home / 'log.txt').open('a').write('more')",
    "truncate": "os.truncate(home / 'model.pt', 0)",
    "make": "(home / 'new').write_bytes(b'new')",
    "folder": "(home / 'made').mkdir()",
    "remove": "(home / 'model.pt').unlink()",
    "rename": "(home / 'model.pt').rename(home / 'renamed')",
    "away": "(home / 'model.pt').rename('away.pt')",
    "link": "os.link(home / 'model.pt', 'linked.pt'); Path('linked.pt').write_bytes(b'new')",
    "symlink": "(home / 'other').symlink_to('model.pt')",
    "child": "assert os.system(f'rm -f {home}/model.pt') == 0",
    "through a link": "Path('latest/last.pt').exists(); Path('down').symlink_to(home); Path('down/model.pt').write_bytes(b'new')",
}
IGNORED = {
    "mode": "(home / 'model.pt').chmod(0o777)",
    "times": "os.utime(home / 'model.pt', (5, 5))",
    "attribute": "os.setxattr(home / 'model.pt', 'user.mark', b'1')",
}


def run(home: Path, change: str, *, mode: str = "landlock") -> subprocess.CompletedProcess[str]:
    (home.parent / "train.py").write_text(SCRIPT.format(change=change))
    (home.parent / "user").mkdir(exist_ok=True)
    variables = {**os.environ, "HOME": str(home.parent / "user"), sandbox.VARIABLE: mode}
    command = [sys.executable, "-m", "stoker", "diagnose", "../train.py", "--", str(home)]
    return subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_home(tmp_path / "home")
    return tmp_path / "home"


@pytest.mark.promise("P18")
@pytest.mark.parametrize("name", ["write", "link", pytest.param("child", marks=pytest.mark.slow), *(
    pytest.param(name, marks=pytest.mark.slow) for name in CHANGES if name not in ("write", "link", "child")
)])  # fmt: skip
def test_a_change_by_an_absolute_path_is_refused(home: Path, name: str) -> None:
    before = state(home)
    done = run(home, CHANGES[name])
    assert state(home) == before
    assert done.returncode == 2


def test_the_message_names_the_path(home: Path) -> None:
    told = run(home, CHANGES["write"]).stderr
    assert f"{home}/model.pt is protected while the program is diagnosed: let it write to a relative path" in told


@pytest.mark.promise("P18", control=True)
def test_negative_control_without_the_sandbox_the_change_is_made(home: Path) -> None:
    before = state(home)
    run(home, CHANGES["write"], mode="off")
    assert state(home) != before


@pytest.mark.promise("P18")
@pytest.mark.parametrize("name", ["mode", *(pytest.param(name, marks=pytest.mark.slow) for name in ("times", "attribute"))])
def test_a_change_of_what_is_known_of_a_file_does_nothing(home: Path, name: str) -> None:
    before, attributes = state(home), os.listxattr(home / "model.pt")
    done = run(home, IGNORED[name])
    assert (state(home), os.listxattr(home / "model.pt")) == (before, attributes)
    assert "Error" not in done.stderr


def test_relative_paths_work_in_the_mirror(home: Path) -> None:
    before = state(home)
    change = (
        "Path('model.pt').write_bytes(b'new'); os.rename('run', 'elsewhere'); "
        "assert Path('elsewhere/deep/best.pt').read_bytes() == b'best'; "
        "assert Path('../home/log.txt').read_text() == 'one\\ntwo\\n'; assert Path('../train.py').exists(); print('all', 'well')"
    )
    assert "all well" in run(home, change).stderr
    assert state(home) == before


def test_a_large_file_is_a_link_and_links_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_home(tmp_path / "home")
    (tmp_path / "home" / "data.bin").write_bytes(bytes(200))
    monkeypatch.setattr(landlock, "MAX_COPY", 100)
    make_mirror(tmp_path / "mirror", [str(tmp_path / "home")])
    mirror = Path(f"{tmp_path}/mirror{tmp_path}/home")
    assert mirror.joinpath("data.bin").readlink() == tmp_path / "home" / "data.bin"
    assert mirror.joinpath("latest").readlink() == Path("run")
    copy, source = (folder / "log.txt" for folder in (mirror, tmp_path / "home"))
    assert not copy.is_symlink()
    assert (copy.read_bytes(), copy.stat().st_mtime_ns) == (source.read_bytes(), source.stat().st_mtime_ns)


def test_beyond_its_limit_a_mirror_has_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_home(tmp_path / "home")
    monkeypatch.setattr(landlock, "MAX_ENTRIES", 1)
    make_mirror(tmp_path / "mirror", [str(tmp_path / "home")])
    assert Path(f"{tmp_path}/mirror{tmp_path}/home/run").is_symlink()


def test_an_unprotected_run_is_announced_and_can_be_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for choice, answer in (("auto", b'{"mode": "off", "error": "overlay: no"}'), ("require", b'{"error": "overlay: no"}')):
        monkeypatch.setenv(sandbox.VARIABLE, choice)
        ours, theirs = socket.socketpair()
        with ours, theirs, sandbox.Sandbox(None) as box:
            modes = {"auto": ["overlay", "landlock", "off"], "require": ["overlay", "landlock"]}
            assert f'"modes":{modes[choice]!s}'.replace("'", '"').replace(" ", "") in box.plan(theirs.fileno())
            theirs.sendall(answer)
            if choice == "require":
                with pytest.raises(TrainError, match="cannot be protected on this machine: overlay: no"):
                    box.wait_until_entered(ours)
            else:
                box.wait_until_entered(ours)
                assert "your files are not protected" in capsys.readouterr().err


@pytest.mark.parametrize("choice", ["auto", "require"])
def test_a_folder_without_an_overlay_is_named_before_the_start(
    choice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(sandbox.VARIABLE, choice)
    ours, theirs = socket.socketpair()
    with ours, theirs, sandbox.Sandbox(None) as box:
        theirs.sendall(b'{"mode": "overlay", "unprotected": ["/data"]}')
        if choice == "require":
            with pytest.raises(TrainError, match="/data cannot be protected by an overlay"):
                box.wait_until_entered(ours)
        else:
            box.wait_until_entered(ours)
            assert "No overlay could be mounted at /data" in capsys.readouterr().err
            assert theirs.recv(1) == b".", "the program starts after the line"
