import gzip
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.collector import Unavailable
from collectors.cursors import load, save
from collectors.follow import Cursor, Follower, Line


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def texts(lines: list[Line]) -> list[bytes]:
    return [line.data for line in lines]


def test_complete_lines_come_once_with_their_offset_and_number(log: Path) -> None:
    append(log, b"one\n\nthree\n")
    follower = Follower(log)
    inode = log.stat().st_ino
    assert follower.read() == [
        Line(b"one", 0, 1, inode=inode),
        Line(b"", 4, 2, inode=inode),
        Line(b"three", 5, 3, inode=inode),
    ]
    assert follower.read() == []
    append(log, b"four\n")
    assert follower.read() == [Line(b"four", 11, 4, inode=inode)]


def test_a_half_line_is_held_until_its_newline_comes(log: Path) -> None:
    append(log, b"whole\nhal")
    follower = Follower(log)
    assert texts(follower.read()) == [b"whole"]
    assert follower.pending == 3
    append(log, b"f a line")
    assert follower.read() == []
    append(log, b"\n")
    assert follower.read() == [Line(b"half a line", 6, 2, inode=log.stat().st_ino)]


def test_the_held_half_line_is_given_out_at_the_end_of_input(log: Path) -> None:
    append(log, b"a\nlast words")
    follower = Follower(log)
    follower.read()
    assert texts(follower.flush_partial()) == [b"last words"]
    assert follower.flush_partial() == []
    append(log, b", more\n")
    assert texts(follower.read()) == [b", more"]


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    append(log, b"1\n")
    follower = Follower(log)
    follower.read()
    append(log, b"2\nhalf")
    log.rename(log.with_suffix(".log.1"))
    append(log, b"3\n")
    lines = follower.read()
    assert texts(lines) == [b"2", b"half", b"3"]
    assert [line.generation for line in lines] == [0, 0, 1]
    assert lines[-1].offset == 0
    assert lines[-1].number == 1


def test_a_writer_that_still_holds_the_renamed_file_is_not_lost(log: Path) -> None:
    append(log, b"1\n")
    follower = Follower(log)
    follower.read()
    with log.open("ab") as old:
        log.rename(log.with_suffix(".log.1"))
        append(log, b"new\n")
        assert texts(follower.read()) == [b"new"]
        old.write(b"late\n")
        old.flush()
        assert texts(follower.read()) == [b"late"]


def test_a_truncated_file_is_read_from_its_start(log: Path) -> None:
    append(log, b"first run, line one\nfirst run, line two\n")
    follower = Follower(log)
    follower.read()
    log.write_bytes(b"second\n")
    lines = follower.read()
    assert texts(lines) == [b"second"]
    assert (lines[0].offset, lines[0].number, lines[0].generation) == (0, 1, 1)


def test_a_truncated_file_that_has_grown_beyond_the_old_end_is_read_from_its_start(
    log: Path,
) -> None:
    append(log, b"first\n")
    follower = Follower(log)
    follower.read()
    log.write_bytes(b"second run\nwith more than before\n")
    assert texts(follower.read()) == [b"second run", b"with more than before"]


def test_a_hole_of_nuls_after_truncation_is_stepped_over(log: Path) -> None:
    with log.open("wb") as out:  # no append mode: the writer goes on at its old offset
        out.write(b"x" * 5000 + b"\n")
        out.flush()
        follower = Follower(log, max_line=1000)
        follower.read()
        os.truncate(log, 0)
        out.write(b"after\n")
        out.flush()
        lines = follower.read()
    assert texts(lines) == [b"after"]
    assert lines[0].offset == 5001


def test_an_overlong_line_is_cut_and_its_rest_skipped(log: Path) -> None:
    append(log, b"y" * 25 + b"\nnext\n")
    lines = Follower(log, max_line=10).read()
    assert [(line.data, line.offset, line.cut) for line in lines] == [
        (b"y" * 10, 0, True),
        (b"next", 26, False),
    ]


def test_an_endless_line_needs_no_more_memory_than_its_limit(log: Path) -> None:
    follower = Follower(log, max_line=100, read_bytes=1000)
    append(log, b"z" * 50)
    assert follower.read() == []
    found = []
    for _ in range(20):
        append(log, b"z" * 1000)
        found += follower.read()
        assert follower.pending <= 100
    assert [(line.data, line.cut) for line in found] == [(b"z" * 100, True)]
    append(log, b"tail\nnext\n")
    assert texts(follower.read()) == [b"next"]


def test_a_cursor_inside_an_overlong_line_resumes_behind_it(log: Path) -> None:
    append(log, b"z" * 500)
    first = Follower(log, max_line=100)
    assert len(first.read()) == 1
    first.close()
    append(log, b"rest\nnext\n")
    assert texts(Follower(log, max_line=100, cursor=first.cursor).read()) == [b"next"]


def test_a_read_takes_a_bounded_bite(log: Path) -> None:
    append(log, b"".join(b"%07d\n" % n for n in range(1000)))
    follower = Follower(log, read_bytes=800)
    assert len(follower.read()) == 100
    found = 100
    while lines := follower.read():
        found += len(lines)
    assert found == 1000


def test_a_large_rotated_file_is_finished_before_the_new_one_is_begun(log: Path) -> None:
    follower = Follower(log, read_bytes=800)
    append(log, b"".join(b"%07d\n" % n for n in range(300)))
    assert len(follower.read()) == 100
    log.rename(log.with_suffix(".log.1"))
    append(log, b"new\n")
    found = []
    for _ in range(6):
        found += texts(follower.read())
    assert found == [b"%07d" % n for n in range(100, 300)] + [b"new"]


def test_progress_bars_are_cut_off_the_line_that_follows_them(log: Path) -> None:
    append(log, b" 1%|#  |\r 2%|## |\r[rank1]: Traceback\r\nplain\r\n")
    lines = Follower(log).read()
    assert [(line.data, line.offset, line.number) for line in lines] == [
        (b" 1%|#  |", 0, 1),
        (b" 2%|## |", 9, 1),
        (b"[rank1]: Traceback", 18, 1),
        (b"plain", 38, 2),
    ]


def test_a_line_end_torn_between_its_two_bytes_is_one_line_end(log: Path) -> None:
    append(log, b"plain\r")
    follower = Follower(log)
    assert texts(follower.read()) == [b"plain"]
    append(log, b"\nnext\n")
    lines = follower.read()
    assert [(line.data, line.number) for line in lines] == [(b"next", 2)]


def test_form_feeds_and_unicode_separators_do_not_end_a_line(log: Path) -> None:
    append(log, b"a\x0cb\x0bc\xe2\x80\xa8d\x85e\r\n")
    assert texts(Follower(log).read()) == [b"a\x0cb\x0bc\xe2\x80\xa8d\x85e"]


def test_a_missing_file_is_unavailable_until_it_appears(log: Path) -> None:
    follower = Follower(log)
    with pytest.raises(Unavailable, match="is not there"):
        follower.read()
    append(log, b"here\n")
    assert texts(follower.read()) == [b"here"]


def test_a_file_that_vanishes_and_returns_is_read_anew(log: Path) -> None:
    append(log, b"old\n")
    follower = Follower(log)
    follower.read()
    log.unlink()
    with pytest.raises(Unavailable):
        follower.read()
    append(log, b"new\n")
    assert texts(follower.read()) == [b"new"]


def test_what_cannot_be_followed_is_said_in_a_sentence(log: Path, tmp_path: Path) -> None:
    log.write_bytes(gzip.compress(b"line\n"))
    with pytest.raises(Unavailable, match="compressed"):
        Follower(log).read()
    with pytest.raises(Unavailable, match="not a plain file"):
        Follower(tmp_path).read()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(Unavailable, match="not a plain file"):
        Follower(fifo).read()


def test_a_cursor_goes_on_where_reading_stood(log: Path, tmp_path: Path) -> None:
    append(log, b"1\n2\nhal")
    follower = Follower(log)
    follower.read()
    kept = tmp_path / "state" / "cursor.json"
    assert follower.cursor is not None
    save(kept, follower.cursor)
    follower.close()
    append(log, b"f\n4\n")
    lines = Follower(log, cursor=load(kept, Cursor)).read()
    assert [(line.data, line.offset, line.number) for line in lines] == [
        (b"half", 4, 3),
        (b"4", 9, 4),
    ]


def test_a_file_rotated_while_nobody_looked_is_finished_under_its_new_name(log: Path) -> None:
    append(log, b"1\n2\n")
    follower = Follower(log)
    follower.read()
    follower.close()
    append(log, b"3\n")
    log.rename(log.with_name("train.log.1"))
    append(log, b"4\n")
    assert texts(Follower(log, cursor=follower.cursor).read()) == [b"3", b"4"]


def test_a_cursor_of_other_content_under_the_same_inode_is_not_believed(log: Path) -> None:
    append(log, b"1\n2\n")
    follower = Follower(log)
    follower.read()
    follower.close()
    log.write_bytes(b"another run\nof the job\n")
    lines = Follower(log, cursor=follower.cursor).read()
    assert texts(lines) == [b"another run", b"of the job"]
    assert lines[0].generation == 1


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"offset": "x"}', b"\xff\xfe"])
def test_a_broken_cursor_is_said_and_ignored(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "cursor.json"
    kept.write_bytes(broken)
    assert load(kept, Cursor) is None
    assert "is broken and ignored" in caplog.text


def test_no_cursor_is_nothing_to_speak_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path / "none.json", Cursor) is None
    assert caplog.text == ""


def test_saving_a_cursor_leaves_no_other_file_behind(tmp_path: Path) -> None:
    kept = tmp_path / "cursor.json"
    for offset in (1, 2):
        cursor = Cursor(device=1, inode=2, offset=offset, line=1, fingerprint="ab")
        save(kept, cursor)
        assert load(kept, Cursor) == cursor
    assert [path.name for path in tmp_path.iterdir()] == ["cursor.json"]


@given(
    pieces=st.lists(
        st.lists(st.sampled_from(b"ab\r\n\x0c\x85"), max_size=12).map(bytes), max_size=12
    ),
    bite=st.integers(min_value=1, max_value=50),
)
def test_any_bytes_in_any_pieces_give_the_lines_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], bite: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(b"")
    follower = Follower(path, read_bytes=bite)
    found = []
    for piece in pieces:
        append(path, piece)
        while lines := follower.read():
            found += lines
        while follower.cursor and follower.cursor.offset + follower.pending < path.stat().st_size:
            found += follower.read()
    found += follower.flush_partial()
    follower.close()
    whole = b"".join(pieces).replace(b"\r\n", b"\n").replace(b"\r", b"\r\n")
    expected = [line.removesuffix(b"\r") for line in whole.split(b"\n") if line != b"\r"]
    if expected[-1:] == [b""]:
        expected.pop()
    assert texts(found) == expected
    data = path.read_bytes()
    assert all(data[line.offset :].startswith(line.data) for line in found)


def test_a_calm_file_is_looked_at_more_and_more_seldom_and_a_growing_one_soon(log: Path) -> None:
    append(log, b"a\n")
    follower = Follower(log)
    assert follower.next_due(5.0) == 5.0
    follower.read()
    follower.read()
    now = time.monotonic()
    pauses = [follower.next_due(now + later) - (now + later) for later in (0.0, 10.0, 1000.0)]
    assert pauses == sorted(pauses)
    assert 0.05 < pauses[0] < pauses[1] < pauses[2] <= 1.0


def test_a_file_with_more_to_read_is_due_at_once_and_one_that_is_missing_is_not(log: Path) -> None:
    append(log, b"0123456789\n" * 100)
    follower = Follower(log, read_bytes=110)
    follower.read()
    now = time.monotonic()
    assert follower.next_due(now) == now
    absent = Follower(log.with_name("absent.log"))
    with pytest.raises(Unavailable):
        absent.read()
    assert absent.next_due(time.monotonic()) > time.monotonic() + 0.5


def test_a_file_that_did_not_change_is_only_looked_at_and_every_change_is_seen(log: Path) -> None:
    append(log, b"one\n")
    follower = Follower(log)
    assert texts(follower.read()) == [b"one"]
    assert follower._unchanged(follower._look())
    append(log, b"two\n")
    assert not follower._unchanged(follower._look())
    assert texts(follower.read()) == [b"two"]
    assert follower._unchanged(follower._look())
    log.write_bytes(b"new\nold\n")  # in place, as long as before
    os.utime(log, ns=(1, 1))
    assert texts(follower.read()) == [b"new", b"old"]
    log.rename(log.with_suffix(".1"))
    append(log, b"after\n")
    assert not follower._unchanged(follower._look())
    assert texts(follower.read() + follower.read()) == [b"after"]
    log.unlink()
    assert not follower._unchanged(follower._look())


def test_a_cursor_says_when_its_file_is_no_longer_there(log: Path) -> None:
    append(log, b"one\n")
    follower = Follower(log)
    follower.read()
    cursor = follower.cursor
    follower.close()
    again = Follower(log, cursor=cursor)
    again.read()
    assert not again.lost_place
    again.close()
    log.rename(log.with_suffix(".gone"))
    log.with_suffix(".gone").rename(log.parent / "elsewhere")
    append(log, b"two\n")
    lost = Follower(log, cursor=cursor)
    lost.read()
    assert lost.lost_place


def test_a_file_that_was_written_between_two_looks_is_not_taken_as_read(log: Path) -> None:
    append(log, b"one\n")
    follower = Follower(log)
    follower.read()
    current = follower._current
    assert current is not None
    assert current.ends_at(log.stat())
    os.utime(log, ns=(1, 1))
    assert not current.ends_at(log.stat())
