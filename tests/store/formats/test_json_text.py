"""The cursor over JSON text: elements come out whole and once, whatever the pieces the file comes in."""

from __future__ import annotations

import io
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from stoker.errors import SourceInvalidError, SourceTooLargeError
from stoker.store.formats import json_text
from stoker.store.formats.json_text import JsonText

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\[]{},:\n é😀', max_size=6)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\],', max_size=3), inner, max_size=3),
    max_leaves=8,
)


class _Dribble:
    """A file that gives a few bytes at a time."""

    def __init__(self, data: bytes, most: int) -> None:
        self._file = io.BytesIO(data)
        self._most = most

    def read(self, num_bytes: int, /) -> bytes:
        return self._file.read(min(num_bytes, self._most))

    def close(self) -> None:
        self._file.close()


def cursor(document: str | bytes, most: int = 1 << 20) -> JsonText:
    data = document.encode() if isinstance(document, str) else document
    return JsonText(_Dribble(data, most), "doc.json")


def elements_of(text: JsonText, *, max_bytes: int, max_count: int | None = None) -> list[Any]:
    found: list[Any] = []
    while (elements := text.take(max_bytes=max_bytes, max_count=max_count)) is not None:
        lines = elements.lines.split(b"\n")
        assert len(lines) == elements.count
        assert max_count is None or elements.count <= max_count
        found.extend(json.loads(line) for line in lines)
    return found


@hypothesis.given(
    document=st.lists(VALUES, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    plain=st.booleans(),
    most=st.integers(1, 40),
    piece=st.sampled_from([1, 2, 7, 1000]),
    max_bytes=st.integers(0, 60),
    max_count=st.none() | st.integers(1, 3),
)
def test_every_element_comes_out_once(
    document: list[Any], indent: int | None, plain: bool, most: int, piece: int, max_bytes: int, max_count: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "PIECE_BYTES", piece)
        text = cursor(json.dumps(document, indent=indent, ensure_ascii=plain) + " \n", most)
        text.enter()
        assert elements_of(text, max_bytes=max_bytes, max_count=max_count) == document
        text.finish()


@hypothesis.given(document=VALUES, most=st.integers(1, 40))
def test_a_value_is_read_whole(document: Any, most: int) -> None:
    text = cursor(json.dumps(document), most)
    assert text.value() == document
    text.finish()


def test_an_array_is_left_behind_its_bracket() -> None:
    text = cursor('{"a": [1, [2]], "b": []}')
    text.expect(b"{")
    assert text.key() == "a"
    text.enter()
    assert text.skip() == 2
    text.expect(b",")
    assert text.key() == "b"
    text.enter()
    assert text.skip() == 0
    text.expect(b"}")
    text.finish()


def test_a_cursor_starts_in_the_middle() -> None:
    document = b'{"a": [1, 2], "b": [3, 4]}'
    text = JsonText(io.BytesIO(document), "doc.json", start=document.index(b"[3"), entered=True)
    assert elements_of(text, max_bytes=100) == [3, 4]


def test_the_file_is_closed_with_the_cursor() -> None:
    file = io.BytesIO(b"[1]")
    with JsonText(file, "doc.json") as text:
        assert text.value() == [1]
    assert file.closed
    other = io.BytesIO(b"{}")
    with pytest.raises(SourceInvalidError, match="expected '\\['"):
        JsonText(other, "doc.json", entered=True)
    assert other.closed


def test_elements_are_stepped_over() -> None:
    for asked in range(4):
        text = cursor("[1, [2], 3]")
        text.enter()
        assert text.skip(asked) == asked
        assert elements_of(text, max_bytes=99) == [1, [2], 3][asked:]
    for too_many in (9, None):
        text = cursor("[1, [2], 3] ")
        text.enter()
        assert text.skip(too_many) == 3
        text.finish()


@pytest.mark.parametrize("document", ["[1, 2", "[", '[{"a": "x', '["\\', "[[1]"])
def test_a_document_that_is_cut_off_is_refused(document: str) -> None:
    text = cursor(document)
    text.enter()
    with pytest.raises(SourceInvalidError, match=r"doc\.json ends inside an array, after .* bytes"):
        elements_of(text, max_bytes=100)


def test_a_line_break_inside_a_string_is_refused() -> None:
    text = cursor('["a\nb"]')
    text.enter()
    with pytest.raises(SourceInvalidError, match="at byte 4: a line break inside a string"):
        text.take(max_bytes=100)


def test_line_breaks_between_tokens_are_layout() -> None:
    text = cursor('[{"a":\n1},\n\n{"a":\n2}]')
    text.enter()
    assert elements_of(text, max_bytes=100) == [{"a": 1}, {"a": 2}]


def test_what_follows_the_document_is_refused() -> None:
    text = cursor("[] []")
    text.enter()
    assert text.take(max_bytes=9) is None
    with pytest.raises(SourceInvalidError, match="expected the end of the file, found '\\[\\]'"):
        text.finish()


def test_a_doubled_key_is_refused() -> None:
    with pytest.raises(SourceInvalidError, match="the key 'a' occurs twice"):
        cursor('{"a": 1, "a": 2}').value()


def test_a_key_with_half_a_character_is_refused() -> None:
    text = cursor('{"\\ud800": 1}')
    text.expect(b"{")
    with pytest.raises(SourceInvalidError, match="not Unicode text"):
        text.key()


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(SourceInvalidError, match="not valid JSON"):
        cursor("[" * 100_000).value()


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(SourceInvalidError, match="not UTF-8"):
        cursor(b'"\xff"').value()


def test_huge_values_and_elements_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_VALUE_BYTES", 1000)
    monkeypatch.setattr(json_text, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(json_text, "PIECE_BYTES", 64)
    with pytest.raises(SourceTooLargeError, match="a value of more than"):
        cursor('"' + "x" * 5000 + '"').value()
    text = cursor("[" + "1" * 5000 + "]")
    text.enter()
    with pytest.raises(SourceTooLargeError, match="an element of more than"):
        text.take(max_bytes=10)


def test_little_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = JsonText(_Dribble(json.dumps(list(range(100_000))).encode(), 1 << 20), "doc.json", piece_bytes=1000)
    held = []
    pull = text._pull
    monkeypatch.setattr(text, "_pull", lambda: (pull(), held.append(len(text._held)))[0])
    text.enter()
    assert elements_of(text, max_bytes=5000) == list(range(100_000))
    assert max(held) < 20_000
