"""UCR's `.tsv`, and `.ts` and `.arff`, which aeon reads."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.store.formats.reading import table_of

from stoker.store.formats.ucr import AeonSource, UcrSource, is_ucr

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


# `.ts` and `.arff`, which aeon reads


"""Labels are few: they become categories."""

UNIVARIATE = "# made up\n@problemName Toy\n@univariate true\n@equalLength true\n@seriesLength 3\n@classLabel true a b\n@data\n"
ARFF = "@relation toy\n@attribute att1 numeric\n@attribute att2 numeric\n@attribute target {0,1}\n@data\n"
RELATION = "@relation toy\n@attribute bag relational\n@attribute a numeric\n@attribute b numeric\n@end bag\n@attribute class {x,y}\n@data\n"


def aeon_source(folder: Path, text: str | bytes, name: str = "a.ts") -> AeonSource:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return AeonSource(path, name)


def test_one_dimension_is_value_and_the_class_is_label(tmp_path: Path) -> None:
    opened = aeon_source(tmp_path, UNIVARIATE + "1,?,3:a\n-0.5,NaN,1e3:b\n")
    assert opened.schema() == pa.schema([("value", pa.large_list(pa.float64())), ("label", LABEL)])
    assert table_of(opened).to_pylist() == [
        {"value": [1.0, None, 3.0], "label": "a"},
        {"value": [-0.5, None, 1000.0], "label": "b"},
    ]


def test_a_regression_target_is_a_number_and_labels_may_be_missing(tmp_path: Path) -> None:
    assert table_of(aeon_source(tmp_path, "@targetLabel true\n@data\n1,2:0.5\n")).to_pylist() == [
        {"value": [1.0, 2.0], "target": 0.5}
    ]
    assert table_of(aeon_source(tmp_path, "@classLabel false\n@data\n1,2\n")).to_pylist() == [{"value": [1.0, 2.0]}]


def test_both_forms_of_arff_are_series(tmp_path: Path) -> None:
    plain = aeon_source(tmp_path, ARFF + "1,2.5,0\n?,-1e3,1\n", "a.arff")
    assert table_of(plain).to_pylist() == [{"value": [1.0, 2.5], "label": "0"}, {"value": [None, -1000.0], "label": "1"}]
    relation = aeon_source(tmp_path, RELATION + "'1,2\\n3,?',x\n'5,6\\n7,8',y\n", "b.arff")
    assert table_of(relation).to_pylist() == [
        {"dim_0": [1.0, 2.0], "dim_1": [3.0, None], "label": "x"},
        {"dim_0": [5.0, 6.0], "dim_1": [7.0, 8.0], "label": "y"},
    ]


def test_the_sets_of_aeon_are_read_as_aeon_reads_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("aeon.datasets")
    path = Path(datasets.__file__).parent / "data" / "JapaneseVowels" / "JapaneseVowels_TRAIN.ts"
    expected, labels = datasets.load_from_ts_file(str(path))
    table = table_of(AeonSource(path, path.name), chunk_bytes=64 << 10)
    names = [name for name in table.column_names if name != "label"]
    for i, case in enumerate(expected):
        values = np.array([table.column(name)[i].values.to_numpy(zero_copy_only=False) for name in names])
        assert np.array_equal(values, case, equal_nan=True)
    assert table.column("label").to_pylist() == labels.tolist()
