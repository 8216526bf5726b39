"""The writer: all or nothing at every operation, errors that name the path, one writer a folder, no way out of a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import files
from stoker.errors import DiskError, DiskFull, StoreDamaged, StoreLocked
from stoker.files import AppendFile, Disk, Lock
from stoker.testing import FaultyFiles, Zygote

OLD = b"old" * 1000
NEW = b"newer" * 2000


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


def count_operations(path: Path) -> int:
    with FaultyFiles() as disk:
        files.write_file(path, NEW)
    return disk.operations


# ---- write_file: all or nothing ----


def replace_in_child(path: str, kill_at: int, short_write_at: int | None = None) -> None:
    with FaultyFiles(kill_at=kill_at, short_write_at=short_write_at):
        files.write_file(Path(path), NEW)


def test_kill_at_every_operation_leaves_old_or_new(tmp_path: Path, zygote: Zygote) -> None:
    path = tmp_path / "file"
    seen = set()
    for k in range(count_operations(path)):
        files.write_file(path, OLD)
        assert zygote.run(replace_in_child, path=path, kill_at=k).signal == signal.SIGKILL
        seen.add(path.read_bytes())
        files.write_file(path, NEW)  # over whatever the killed process left
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert seen == {OLD, NEW}


def test_kill_in_the_middle_of_a_write_leaves_old(tmp_path: Path, zygote: Zygote) -> None:
    path = tmp_path / "file"
    files.write_file(path, OLD)
    write = 1  # create is operation 0
    assert zygote.run(replace_in_child, path=path, kill_at=write + 1, short_write_at=write).signal == signal.SIGKILL
    assert (tmp_path / "file.tmp").read_bytes() == NEW[: len(NEW) // 2]
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EXDEV])
@pytest.mark.parametrize("sticky", [False, True])
def test_an_error_at_every_operation_is_named_and_leaves_no_debris(tmp_path: Path, code: int, sticky: bool) -> None:
    path = tmp_path / "file"
    for k in range(count_operations(path)):
        files.write_file(path, OLD)
        with (
            FaultyFiles(error_at=(k, code), sticky=sticky),
            pytest.raises(DiskFull if code in (errno.ENOSPC, errno.EDQUOT) else DiskError, match=re.escape(str(path))) as caught,
        ):
            files.write_file(path, NEW)
        assert caught.value.errno == code
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() in (OLD, NEW)


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for k in range(count_operations(path)):
        files.write_file(path, OLD)
        with FaultyFiles(short_write_at=k):
            files.write_file(path, NEW)
        assert path.read_bytes() == NEW


def test_a_short_overwrite_is_continued(tmp_path: Path) -> None:
    file = AppendFile.create(tmp_path / "file")
    file.append(bytes(100))
    with FaultyFiles(short_write_at=0):
        file.overwrite(b"0123456789", 20)
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(20) + b"0123456789" + bytes(70)


def test_a_write_without_progress_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Disk):
        def write(self, fd: int, data: Any) -> int:
            return 0

    monkeypatch.setattr(files, "disk", Stuck())
    with pytest.raises(DiskError, match="EIO"):
        files.write_file(tmp_path / "file", b"x")


def test_an_empty_file_can_be_written(tmp_path: Path) -> None:
    files.write_file(tmp_path / "file", b"")
    assert (tmp_path / "file").read_bytes() == b""


def test_a_durable_file_is_read_only_and_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_file(path, OLD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    files.write_file(path, NEW)
    assert path.read_bytes() == NEW


def test_a_file_that_need_not_last_is_replaced_whole_and_never_synced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with FaultyFiles(record=True) as disk:
        files.write_file(path, NEW, durable=False)
    assert path.read_bytes() == NEW
    assert [operation.kind for operation in disk.log] == ["create", "write", "replace"]


# ---- errors ----


def test_disk_full_names_path_needed_and_free_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with FaultyFiles(error_at=(1, errno.ENOSPC)), pytest.raises(DiskFull) as caught:
        files.write_file(path, bytes(12_345))
    assert re.search(rf"{path}.*12,345 bytes needed, [\d,]+ free", str(caught.value))


def test_the_kernel_itself_says_that_a_device_is_full() -> None:
    file = AppendFile(Path("/dev/full"), os.open("/dev/full", os.O_WRONLY), 0)
    with pytest.raises(DiskFull, match=r"/dev/full.*3 bytes needed"):
        file.append(b"abc")
    file.close()


def write_beyond_a_limit(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    files.write_file(Path(path), bytes(10_000))


def test_a_limit_in_the_middle_of_a_write_is_an_error_and_leaves_nothing(tmp_path: Path, zygote: Zygote) -> None:
    outcome = zygote.run(write_beyond_a_limit, path=tmp_path / "file")
    assert outcome.error is not None
    assert outcome.error.startswith("DiskError")
    assert "EFBIG" in outcome.error
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_created_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(DiskError, match="EEXIST"):
        AppendFile.create(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == OLD


# ---- files that grow ----


def test_reopen_cuts_to_the_known_length_and_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"known, and then something unknown")
    file = AppendFile.reopen(path, 5)
    file.append(b" more")
    file.close()
    assert path.read_bytes() == b"known more"
    assert file.num_bytes == 10


def test_reopen_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(DiskError, match="ELOOP"):
        AppendFile.reopen(tmp_path / "link", 0)
    assert (tmp_path / "target").read_bytes() == OLD


def test_a_failed_reopen_gives_its_descriptor_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with FaultyFiles(error_at=(1, errno.EIO)), pytest.raises(DiskError):
        AppendFile.reopen(tmp_path / "file", 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def fail_to_publish_and_go_on() -> int:
    """As a user without root's right to write read-only files."""
    if os.getuid() == 0:
        os.chown(".", 65534, 65534)
        os.setuid(65534)
    growing, final = Path("growing"), Path("final")
    taken_up = 0
    for k in range(2, 5):  # publish, sync and replace come behind create and write
        with FaultyFiles(error_at=(k, errno.EIO)):
            file = AppendFile.create(growing)
            file.append(b"abc")
            try:
                file.publish(final)
            except DiskError:
                file.close()
        if growing.exists():
            AppendFile.reopen(growing, 3).close()
            growing.unlink()
            taken_up += 1
    return taken_up


def test_a_file_whose_publishing_failed_can_be_taken_up_again(zygote: Zygote) -> None:
    assert zygote.run(fail_to_publish_and_go_on).check() >= 2


# ---- folders ----


def test_every_new_folder_is_made_durable_in_its_parent(tmp_path: Path) -> None:
    with FaultyFiles(record=True) as disk:
        assert files.make_folder(tmp_path / "a" / "b")
        assert not files.make_folder(tmp_path / "a" / "b")
    found = [(operation.kind, operation.path) for operation in disk.log]
    outer, inner = tmp_path / "a", tmp_path / "a" / "b"
    expected = [("mkdir", outer), ("sync_folder", tmp_path), ("mkdir", inner), ("sync_folder", outer)]
    assert found == expected


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DiskError, match=r"/a: .*EEXIST"):
        files.make_folder(tmp_path / "a")


def test_removing_a_folder_removes_links_and_not_what_they_point_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(OLD)
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_bytes(NEW)
    (folder / "to_folder").symlink_to(precious)
    (folder / "to_file").symlink_to(precious / "file")
    files.remove_folder(folder)
    assert not folder.exists()
    assert (precious / "file").read_bytes() == OLD


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    files.remove_file(tmp_path / "nothing")
    files.remove_folder(tmp_path / "nothing")


# ---- the lock ----


def take_lock(folder: str) -> None:
    with Lock(Path(folder)):
        pass


def take_lock_and_die(folder: str) -> None:
    with Lock(Path(folder)):
        os.kill(os.getpid(), signal.SIGKILL)


def take_lock_and_wait(folder: str) -> None:
    with Lock(Path(folder)):
        Path(folder, "locked").touch()
        signal.pause()


def test_a_second_process_is_refused_and_told_who_writes(tmp_path: Path, zygote: Zygote) -> None:
    with Lock(tmp_path):
        refused = zygote.run(take_lock, folder=tmp_path)
        assert refused.error is not None
        assert refused.error.startswith("StoreLocked")
        assert f"process {os.getpid()}." in refused.error
    zygote.run(take_lock, folder=tmp_path).check()


def test_a_second_lock_of_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with Lock(tmp_path), pytest.raises(StoreLocked, match=str(os.getpid())), Lock(tmp_path):
        pass


def test_the_lock_is_free_after_kill_9(tmp_path: Path, zygote: Zygote) -> None:
    assert zygote.run(take_lock_and_die, folder=tmp_path).signal == signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    with Lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_the_lock_is_held_until_its_holder_is_killed(tmp_path: Path, zygote: Zygote) -> None:
    holder = zygote.start(take_lock_and_wait, folder=tmp_path)
    while not (tmp_path / "locked").exists():
        os.sched_yield()
    with pytest.raises(StoreLocked, match=f"process {holder.pid}"), Lock(tmp_path):
        pass
    holder.kill(signal.SIGKILL)
    assert holder.wait().signal == signal.SIGKILL
    with Lock(tmp_path):
        pass


def remove_lock_file_before_flock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, which holds the lock, removes its file between our open and our flock, and yet another makes a new one."""
    flock = fcntl.flock
    removals = iter([True])

    def removing(fd: int, operation: int) -> None:
        if next(removals, False):
            (folder / ".lock").unlink()
            (folder / ".lock").touch()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", removing)


def test_a_lock_file_that_was_replaced_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_lock_file_before_flock(tmp_path, monkeypatch)
    with Lock(tmp_path), pytest.raises(StoreLocked), Lock(tmp_path):
        pass


def test_negative_control_without_the_second_look_two_hold_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_lock_file_before_flock(tmp_path, monkeypatch)
    monkeypatch.setattr(os.path, "samestat", lambda a, b: True)
    with Lock(tmp_path), Lock(tmp_path):
        pass


def test_a_lock_that_could_not_be_signed_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    lock = Lock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull), lock:
            pass
    with Lock(tmp_path):
        pass


def test_a_link_as_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(OLD)
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(DiskError, match="ELOOP"), Lock(tmp_path):
        pass
    assert (tmp_path / "precious").read_bytes() == OLD


# ---- the path check ----

HOSTILE_NAMES = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "../../etc/passwd",
    "../0123456789abcdef.npy",
    "./0123456789abcdef.npy",
    "/0123456789abcdef.npy",
    "a/0123456789abcdef.npy",
    "0123456789abcdef.npy/..",
    "0123456789abcdef.npy/",
    "0123456789abcdef.npy\n",
    "0123456789abcdef.npy\0",
    "0123456789abcdef.npy ",
    " 0123456789abcdef.npy",
    "0123456789ABCDEF.npy",
    "0123456789abcdeg.npy",
    "0123456789abcde.npy",
    "0123456789abcdef0.npy",
    "0123456789abcdef.NPY",
    "0123456789abcdef_npy",
    "0123456789abcdef.npz",
    "0123456789abcdef",
    "0123456789abcdef.npy.tmp",
    "\u0660\u0661\u066223456789abcdef.npy",
    "\uff10123456789abcdef.npy",
    "..\\0123456789abcdef.npy",
    "file:0123456789abcdef.npy",
    "manifest.json",
    "C:0123456789abcdef.npy",
    "\ud800123456789abcdef.npy",
]
SHARD = "0123456789abcdef.npy"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_is_refused_before_it_is_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    with pytest.raises(StoreDamaged, match="shard name"):
        files.open_inside(tmp_path, name)


def test_negative_control_without_the_name_check_a_name_leads_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store").mkdir()
    monkeypatch.setattr(files, "SHARD_NAME", re.compile(".*"))
    fd = files.open_inside(tmp_path / "store", "../secret")
    assert os.read(fd, 9) == b"secret"
    os.close(fd)


def put_link(path: Path) -> None:
    (path.parent / "target").write_bytes(OLD)
    path.symlink_to(path.parent / "target")


def put_device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("put", [put_link, put_device_link, put_fifo, put_folder, put_socket])
def test_what_is_not_a_plain_file_is_refused(tmp_path_factory: pytest.TempPathFactory, put: Any) -> None:
    folder = tmp_path_factory.mktemp("s")  # short: the name of a socket has at most 107 bytes
    put(folder / SHARD)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreDamaged, match="plain file"):
        files.open_inside(folder, SHARD)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_plain_file_is_opened_for_reading_only(tmp_path: Path) -> None:
    (tmp_path / SHARD).write_bytes(OLD)
    fd = files.open_inside(tmp_path, SHARD)
    assert os.read(fd, 3) == b"old"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    os.close(fd)


def test_an_absent_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open_inside(tmp_path, SHARD)
