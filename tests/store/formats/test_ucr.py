"""UCR's `.tsv`."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, table_of

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.ucr import UcrSource, is_ucr

LABEL = pa.dictionary(pa.int32(), pa.string())
"""Labels are few: they become categories."""


def source(folder: Path, text: str | bytes) -> UcrSource:
    path = folder / "a.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return UcrSource(path, "a.tsv")


def test_the_label_is_first_and_padding_is_taken_off(tmp_path: Path) -> None:
    one = source(tmp_path, "1\t0.5\tNaN\t2\n\n-1\t3\tNaN\tNaN\r\n2\tNaN\tnan\tNaN\n")
    assert one.schema() == pa.schema([("value", pa.large_list(pa.float64())), ("label", LABEL)])
    table = table_of(one)
    assert table.column("label").to_pylist() == ["1", "-1", "2"]
    assert repr(table.column("value").to_pylist()) == "[[0.5, nan, 2.0], [3.0], []]"


def test_reading_continues_behind_every_chunk(tmp_path: Path) -> None:
    lines = [f"{i % 3}\t{i / 8}\t{-i}\t{'NaN' if i % 5 else i}" for i in range(60)]
    one = source(tmp_path, "\n".join(lines))
    assert_resumes(one, chunk_bytes=300)
    assert_threads_agree(one, chunk_bytes=300)
    assert_projects(one)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", SourceEmptyError, "is empty"),
        (b"\n\n", SourceEmptyError, "blank lines"),
        (b"time\tvalue\n1\t2\n", SourceInvalidError, "Is it a table"),
        (b"1,2,3\n", SourceInvalidError, "Is it a table"),
        (b"1\t2\t3\n1\t2\n", SourceInvalidError, "line 2 .* 2 fields found, 3 expected"),
        (b"1\t2\t3\n\t2\t3\n", SourceInvalidError, "line 2 .* the label is empty"),
        (b"1\t2\t3\n\n1\tx\t3\n", SourceInvalidError, "line 3 .* 'x' is not numeric"),
        (b"1\t2\t3\n1\t1,5\t3\n", SourceInvalidError, "line 2 .* '1,5' is not numeric"),
        (b"1\t2\t3\n\xff\t2\t3\n", SourceInvalidError, "line 2"),
        (b"1\t2\n1\t9007199254740993\n", SourceInvalidError, "line 2 .* cannot hold exactly"),
        (b"\x93NUMPY\x01\x00", SourceInvalidError, "a.tsv"),
    ],
)
def test_odd_files_are_named_with_their_line(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        table_of(source(tmp_path, content))
    assert "a.tsv" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"1\t0.5\t0.25\n", True),
        (b"1.0000e+00\t0.5\n", True),
        (b"-1\tNaN\n", True),
        (b"0.5\t0.5\n", False),
        (b"a\tb\n1\t2\n", False),
        (b"1\n2\n", False),
        (b"1\t2020-01-01\n", False),
        (b"nan\t1\n", False),
        (b"\n", False),
        (b"", False),
    ],
)
def test_the_form_is_reported_by_the_first_line(tmp_path: Path, content: bytes, expected: bool) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(content)
    assert is_ucr(path) is expected


FORMS = st.sampled_from(["{!r}", "{:.17g}", "{:.12e}", "{:.20g}", "{:+.17g}", " {!r} "])


@hypothesis.given(
    values=st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False, width=32), FORMS), min_size=1, max_size=9)
)
def test_every_number_is_what_python_reads(values: list[tuple[float, str]]) -> None:
    fields = [form.format(value) for value, form in values]
    with tempfile.TemporaryDirectory() as folder:
        table = table_of(source(Path(folder), "\t".join(["1", *fields]) + "\n"))
    numbers = table.column("value").combine_chunks().flatten().to_numpy()
    assert numbers.tobytes() == struct.pack(f"<{len(fields)}d", *(float(field) for field in fields))


CHINATOWN = Path("/work/shared/data/ucr")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not CHINATOWN.is_dir(), reason="the data set is not on this machine")
@pytest.mark.parametrize(("part", "cases"), [("TRAIN", 20), ("TEST", 345)])
def test_chinatown_is_read_as_numpy_reads_it(part: str, cases: int) -> None:
    path = CHINATOWN / f"Chinatown_{part}.tsv"
    expected = np.loadtxt(path, delimiter="\t")
    table = table_of(UcrSource(path, path.name))
    assert table.num_rows == cases
    assert np.array_equal(np.array(table.column("value").to_pylist()), expected[:, 1:])
    assert [float(label) for label in table.column("label").to_pylist()] == expected[:, 0].tolist()
