"""Files are written whole or not at all, and a disk that refuses is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from recur_tune.common.errors import UserError
from recur_tune.common.files import append_line, cache_folder, whole_folder, write_text, writing
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.data.tokens import prepare
from tests.disks import mounted_disk

pytestmark = pytest.mark.usefixtures("real_fsync")


def listing(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    with mounted_disk(tmp_path / "disk", "64k") as disk:
        yield disk


def test_a_new_folder_appears_only_when_the_block_has_ended(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with whole_folder(target) as partial:
        (partial / "one").write_text("1")
        (partial / "inner").mkdir()
        (partial / "inner" / "two").write_text("2")
        assert not target.exists()
    assert listing(tmp_path) == {"deep/target/one": b"1", "deep/target/inner/two": b"2"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["target"]


def test_files_move_into_a_folder_that_exists_and_leave_the_others_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "replaced").write_text("old")
    with whole_folder(tmp_path) as partial:
        (partial / "replaced").write_text("new")
        (partial / "added").write_text("added")
        assert (tmp_path / "replaced").read_text() == "old" and not (tmp_path / "added").exists()
    assert listing(tmp_path) == {"kept": b"kept", "replaced": b"new", "added": b"added"}
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("error", [RuntimeError("stopped"), KeyboardInterrupt(), UserError("refused"), ValueError("x")])
@pytest.mark.parametrize("existing", [True, False])
def test_after_an_exception_nothing_half_written_stays(tmp_path: Path, error: BaseException, existing: bool) -> None:
    target = tmp_path / "target"
    if existing:
        target.mkdir()
        (target / "file").write_text("before")
    before = listing(tmp_path)
    with pytest.raises(type(error)) as caught, whole_folder(target) as partial:
        (partial / "file").write_text("half")
        raise error
    assert caught.value is error, "an error that is not the disk's passes unchanged"
    assert listing(tmp_path) == before
    assert target.exists() == existing and len(list(tmp_path.iterdir())) == existing


def test_a_new_folder_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with whole_folder(tmp_path / "target"):
        pass
    assert (tmp_path / "target").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_appeared_meanwhile_receives_the_files(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_folder(target) as partial:
        (partial / "ours").write_text("ours")
        target.mkdir()
        (target / "theirs").write_text("theirs")
    assert listing(tmp_path) == {"target/ours": b"ours", "target/theirs": b"theirs"}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_write_text_makes_and_replaces_a_file(tmp_path: Path) -> None:
    for text in ("first", "second"):
        write_text(tmp_path / "folder" / "file", text)
        assert listing(tmp_path) == {"folder/file": text.encode()}


def test_append_line_adds_whole_lines(tmp_path: Path) -> None:
    append_line(tmp_path / "log", "one")
    append_line(tmp_path / "log", "two")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_place_where_no_folder_can_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    target = tmp_path / "file" / "target"
    with pytest.raises(UserError, match=f"{target} could not be written"), whole_folder(target):
        pass
    with pytest.raises(UserError, match=r"missing.*No such file or directory"):
        append_line(tmp_path / "missing" / "log", "line")
    assert listing(tmp_path) == {"file": b"in the way"}


def test_a_refusal_names_the_file_that_was_refused() -> None:
    sentence = r"target could not be written \(other: Permission denied\)"
    with pytest.raises(UserError, match=sentence), writing(Path("target")):
        raise PermissionError(13, "Permission denied", "other")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_line_that_does_not_fit_says_that_the_disk_is_full() -> None:
    with pytest.raises(UserError, match=r"/dev/full could not be written .*the disk is full"):
        append_line(Path("/dev/full"), "line")


def test_a_line_that_does_not_fit_leaves_no_half_of_it(tiny_disk: Path) -> None:
    append_line(tiny_disk / "log", "x" * 3000)
    with pytest.raises(UserError, match="the disk is full"):
        append_line(tiny_disk / "log", "y" * 100_000)
    assert (tiny_disk / "log").read_text() == "x" * 3000 + "\n"


def test_a_folder_that_does_not_fit_says_that_the_disk_is_full(tiny_disk: Path) -> None:
    target = tiny_disk / "target"
    sentence = f"{target} could not be written .*the disk is full"
    with pytest.raises(UserError, match=sentence), whole_folder(target) as partial:
        (partial / "small").write_bytes(b"fits")
        (partial / "large").write_bytes(bytes(100_000))
    assert list(tiny_disk.iterdir()) == []


def test_a_file_keeps_its_content_when_the_new_one_does_not_fit(tiny_disk: Path) -> None:
    write_text(tiny_disk / "file", "before")
    with pytest.raises(UserError, match="the disk is full"):
        write_text(tiny_disk / "file", "x" * 100_000)
    assert listing(tiny_disk) == {"file": b"before"}
    assert len(list(tiny_disk.iterdir())) == 1


def test_weights_that_do_not_fit_say_that_the_disk_is_full(tiny_disk: Path) -> None:
    with pytest.raises(UserError, match="the disk is full"), whole_folder(tiny_disk / "model") as partial:
        save_file({"weight": np.zeros(100_000, dtype=np.float32)}, partial / "model.safetensors")
    assert list(tiny_disk.iterdir()) == []


def test_a_corpus_that_does_not_fit_says_that_the_disk_is_full(
    tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tiny_disk))
    (tmp_path / "train.txt").write_bytes(b"text " * 20_000)
    with pytest.raises(UserError, match=f"{tiny_disk}.*the disk is full"):
        prepare(f"text:{tmp_path}", "train", byte_tokenizer())
    assert [path for path in tiny_disk.iterdir() if path.suffix != ".lock"] == []


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RECUR_TUNE_CACHE", "~/chosen")
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("RECUR_TUNE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "recur-tune"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "recur-tune"
