"""A program uses files in the sandbox as it does alone, and the user's files are as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.library_idioms import IDIOMS

pytestmark = pytest.mark.promise("P18")

Found = dict[str, Any]


def run_ways(folder: Path, *ways: str) -> Found:
    """What the idioms return in some ways to run them."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.geteuid() and above.stat().st_mode & 0o005 != 0o005:
            above.chmod(0o755)  # so that another user can enter it
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    command = [sys.executable, "-m", "tests.sandbox.idiom_runner", str(folder), *ways]
    path = os.pathsep.join(str(Path(file).absolute()) for file in sys.path)
    variables = {**os.environ, **one_thread, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    results: Found = json.loads(done.stdout)
    for way, one in results.items():
        if "cannot be protected" in one.get("error", ""):
            pytest.skip(f"{way} is not permitted on this machine")
        assert "error" not in one, one["error"]
    return results


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_ways(tmp_path_factory.mktemp("idioms"), "alone", "overlay", "landlock")


WITHOUT_METADATA = {"low_temporary_file_into_place", "marks"}
"""Idioms that see the mode, the time or an attribute that they have set: under Landlock, setting one does nothing."""


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_does_the_same(found: Found, name: str, mode: str) -> None:
    is_same = found[mode]["results"][name] == found["alone"]["results"][name]
    assert is_same == (mode == "overlay" or name not in WITHOUT_METADATA)


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_the_files_of_the_user_are_as_before(found: Found, mode: str) -> None:
    assert (found[mode]["changed"], found[mode]["left"]) == ([], [])


def test_negative_control_alone_most_idioms_change_the_files(found: Found) -> None:
    assert len(found["alone"]["changed"]) > 30


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="for another user than root, these are the modes above")
def test_all_idioms_do_the_same_for_a_user_without_rights() -> None:
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # not `tmp_path`: another session of pytest closes the folder around it to other users
        ways = run_ways(Path(folder), "alone as a user", "overlay of a user", "landlock of a user")
    alone, overlay, landlock = ways.values()
    assert overlay == {"results": alone["results"], "changed": [], "left": []}
    different = {name for name, result in landlock["results"].items() if result != alone["results"][name]}
    assert (different, landlock["changed"], landlock["left"]) == (WITHOUT_METADATA | {"rights"}, [], [])


@pytest.mark.slow
def test_negative_control_without_its_parts_the_sandbox_fails(found: Found, tmp_path: Path) -> None:
    (unmoved,) = run_ways(tmp_path, "overlay that moves nothing").values()
    different = [name for name, result in unmoved["results"].items() if result != found["alone"]["results"][name]]
    assert different == ["temporary_file_into_a_new_folder", "from_temporary_files_to_here"]
