"""The bounded log of one attempt."""

import os
from pathlib import Path

import pytest

from millpond_node_agent.runtimes.logfile import LogWriter, log_pieces, read_log

pytestmark = pytest.mark.unit


def write(folder: Path, *chunks: bytes) -> LogWriter:
    writer = LogWriter(str(folder), head_bytes=10, segment_bytes=4, segment_count=2)
    for chunk in chunks:
        writer.write(chunk)
    return writer


def test_write_when_short_then_all_is_read_back_from_any_offset(tmp_path: Path) -> None:
    write(tmp_path, b"hello ", b"you")

    assert read_log(str(tmp_path), 0, 100) == (0, b"hello you")
    assert read_log(str(tmp_path), 6, 2) == (6, b"yo")
    assert read_log(str(tmp_path), 9, 100) == (9, b"")


def test_write_when_past_the_limit_then_head_and_tail_stay_and_the_cut_shows(tmp_path: Path) -> None:
    text = bytes(range(65, 65 + 26))
    writer = write(tmp_path, text[:3], text[3:21], text[21:])

    assert writer.total_bytes == 26
    assert read_log(str(tmp_path), 0, 100) == (0, text[:10])
    start, tail = read_log(str(tmp_path), 10, 100)
    assert start == 18, "the reader learns that the bytes from 10 to 18 are gone"
    assert tail == text[18:22]
    assert read_log(str(tmp_path), 22, 100) == (22, text[22:])
    assert sum(length for _, length, _ in log_pieces(str(tmp_path))) <= 10 + 2 * 4


def test_write_when_the_disk_refuses_then_later_offsets_are_still_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write(tmp_path, b"abc")

    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        writer.write(b"def")
    writer.write(b"ghi")

    assert writer.lost_bytes == 3
    assert read_log(str(tmp_path), 6, 100) == (6, b"ghi")
