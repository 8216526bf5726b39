"""What all sources share: files that a description names, and errors of decoders."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from stoker.errors import SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import decoding, inside


@pytest.mark.parametrize(
    ("raised", "found"), [(pa.ArrowInvalid("bad\nmagic"), SourceInvalidError), (MemoryError(), SourceTooLargeError)]
)
def test_what_a_decoder_raises_names_the_file(raised: Exception, found: type[Exception]) -> None:
    with pytest.raises(found, match=r"a\.arrow") as caught, decoding(Path("a.arrow"), "Arrow IPC"):
        raise raised
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raised", [SourceEmptyError("empty"), ZeroDivisionError()])
def test_negative_control_other_errors_stay(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, decoding(Path("a.arrow"), "Arrow IPC"):
        raise raised
    assert caught.value is raised


def test_files_of_a_description_are_inside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part.bin").write_bytes(b"x")
    (folder / "sub").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert inside(folder, "part.bin", named_by="meta.json") == folder / "part.bin"
    for name in ("", ".", "..", "../secret", "sub/x", "a\\b", "a\0b"):
        with pytest.raises(SourceInvalidError, match="expected the plain name"):
            inside(folder, name, named_by="meta.json")
    for name, message in (("gone", "which is not in"), ("link", "leads out of its folder"), ("sub", "is not a plain file")):
        with pytest.raises(SourceInvalidError, match=message):
            inside(folder, name, named_by="meta.json")
