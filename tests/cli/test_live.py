"""`stoker live`: the address of a page, a page in a file, and what is wrong with a call."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.cli.calling import Done, environment, stoker_command

from stoker.train.run import Run

Stoker = Callable[..., Done]


def test_a_page_is_served_until_ctrl_c(tmp_path: Path) -> None:
    Run(tmp_path / "runs" / "a").end("finished")
    command = stoker_command("live", "runs")
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.fullmatch(r"runs: (http://127\.0\.0\.1:\d+/\?token=\S+)\n", line)
        assert found, line
        with urllib.request.urlopen(found[1], timeout=60) as answer:
            assert b"Stoker runs" in answer.read()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "next: stoker runs runs\n")
    assert err.splitlines() == ["stoker: reading the runs of runs …", "stoker: Ctrl-C ends it.", "stoker: ended."]


def test_json_is_one_document_with_the_address_or_the_page(stoker: Stoker, tmp_path: Path) -> None:
    Run(tmp_path / "runs" / "a").end("finished")
    page = str(tmp_path / "a.html")
    assert json.loads(stoker("live", tmp_path / "runs", "--save", page, "--json").out) == {"path": page, "runs": 1}
    command = stoker_command("live", "runs", "--json")
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        with urllib.request.urlopen(json.loads(line)["address"], timeout=60) as answer:
            assert b"Stoker runs" in answer.read()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, "", "")
