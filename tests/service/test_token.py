"""The token of the API: whose it is, who may read it, and that it is shown nowhere."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from autotune.service.token import Token, default_path
from autotune.values import BadInput

GOOD = "abcdefghijklmnopqrstuvwxyz"


def stored(path: Path, text: str = GOOD, mode: int = 0o600) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_token_is_made_for_its_owner_alone(tmp_path):
    path = tmp_path / "config" / "autotune" / "token"
    before = os.umask(0)
    try:
        made = Token.load_or_make(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text().strip()
    assert len(text) >= 40
    assert made.matches(text)
    assert [file.name for file in path.parent.iterdir()] == ["token"]


def test_a_umask_that_takes_everything_leaves_it_readable_for_its_owner(tmp_path):
    before = os.umask(0o777)
    try:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub").chmod(0o700)
        Token.load_or_make(tmp_path / "sub" / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "sub" / "token").stat().st_mode) == 0o600


def test_the_same_token_is_loaded_again(tmp_path):
    path = tmp_path / "token"
    Token.load_or_make(path)
    text = path.read_text()
    assert Token.load_or_make(path).matches(text.strip())
    assert path.read_text() == text


def test_those_who_make_it_at_once_get_the_same_one(tmp_path):
    path, made = tmp_path / "a" / "token", []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        made.append(Token.load_or_make(path))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = path.read_text().strip()
    assert [token.matches(text) for token in made] == [True] * 8
    assert [file.name for file in path.parent.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path, mode):
    path = stored(tmp_path / "token", mode=mode)
    with pytest.raises(BadInput, match="can be read by others"):
        Token.load_or_make(path)
    assert path.read_text() == GOOD


@pytest.mark.parametrize("text", ["", "\n", "  \n\t\n"])
def test_an_empty_file_is_refused(tmp_path, text):
    with pytest.raises(BadInput, match="is empty"):
        Token.load_or_make(stored(tmp_path / "token", text))


@pytest.mark.parametrize(
    "text", ["short", "two words and some more", "line one here\nline two here", "é" * 30, "x" * 513]
)
def test_what_is_no_token_is_refused_without_being_shown(tmp_path, text):
    with pytest.raises(BadInput, match="is none") as refusal:
        Token.load_or_make(stored(tmp_path / "token", text))
    assert text not in str(refusal.value)


def test_what_is_no_regular_file_is_refused(tmp_path):
    folder, link, pipe = tmp_path / "folder", tmp_path / "link", tmp_path / "pipe"
    folder.mkdir()
    link.symlink_to(stored(tmp_path / "token"))
    os.mkfifo(pipe, 0o600)
    for path in (folder, link, pipe):
        with pytest.raises(BadInput, match="no regular file"):
            Token.load_or_make(path)


def test_the_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = stored(tmp_path / "token")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(BadInput, match="belongs to another user"):
        Token.load_or_make(path)


def test_a_folder_in_which_others_may_replace_it_is_refused(tmp_path):
    path = stored(tmp_path / "open" / "token")
    path.parent.chmod(0o777)
    with pytest.raises(BadInput, match="chmod 700"):
        Token.load_or_make(path)
    path.parent.chmod(0o1777)  # as /tmp: there nobody replaces the file of another
    assert Token.load_or_make(path).matches(GOOD)


def test_a_place_that_cannot_hold_it_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="name another file"):
        Token.load_or_make(tmp_path / "file" / "token")


def test_only_the_whole_token_matches():
    token = Token(GOOD)
    assert token.matches(GOOD)
    for other in ("", GOOD[:-1], GOOD + "a", GOOD.upper(), f" {GOOD}", "\ud800", "é" * 26, GOOD + "\x00"):
        assert not token.matches(other)


def test_it_is_shown_nowhere():
    token = Token(GOOD)
    assert GOOD not in f"{token} {token!r} {[getattr(token, name) for name in Token.__slots__]}"


def test_the_default_place_follows_the_users_settings(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_path({}) == Path("/home/somebody/.config/autotune/token")
    assert default_path({"XDG_CONFIG_HOME": "/elsewhere"}) == Path("/elsewhere/autotune/token")
    assert default_path({"XDG_CONFIG_HOME": "relative"}) == Path("/home/somebody/.config/autotune/token")


def test_the_environment_chooses_the_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    Token.load_or_make()
    assert (tmp_path / "autotune" / "token").is_file()
