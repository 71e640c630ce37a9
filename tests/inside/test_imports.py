"""The post-import hook, with modules made on the spot."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.inside import imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package `watched_pkg` with a module `leaf` and one that uses it, importable and forgotten afterwards."""
    folder = tmp_path / "watched_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "leaf.py").write_text("VALUE = 1\ndef answer():\n    return VALUE\n")
    (folder / "user.py").write_text("from watched_pkg.leaf import answer\nRESULT = answer()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "watched_pkg"
    for name in [name for name in sys.modules if name.split(".")[0] == "watched_pkg"]:
        del sys.modules[name]
    for name in [name for name in imports._FINDER.watched if name.split(".")[0] == "watched_pkg"]:
        del imports._FINDER.watched[name]


def test_watching_a_module_does_not_import_it(package: str) -> None:
    imports.after_import(f"{package}.leaf", lambda module: None)
    assert f"{package}.leaf" not in sys.modules


def test_actions_run_in_order_after_the_body_of_the_module(package: str) -> None:
    seen: list[object] = []
    imports.after_import(f"{package}.leaf", lambda module: seen.append(module.VALUE))
    imports.after_import(f"{package}.leaf", lambda module: seen.append(module.answer()))
    importlib.import_module(f"{package}.leaf")
    assert seen == [1, 1]


def test_an_action_changes_what_a_later_from_import_gets(package: str) -> None:
    imports.after_import(f"{package}.leaf", lambda module: setattr(module, "answer", lambda: 42))
    user = importlib.import_module(f"{package}.user")
    assert user.RESULT == 42


def test_a_module_that_is_there_already_is_acted_on_at_once(package: str) -> None:
    module = importlib.import_module(f"{package}.leaf")
    imports.after_import(f"{package}.leaf", lambda found: setattr(found, "VALUE", 2))
    assert module.answer() == 2


def test_a_second_import_does_not_act_again(package: str) -> None:
    calls: list[object] = []
    imports.after_import(f"{package}.leaf", calls.append)
    importlib.import_module(f"{package}.leaf")
    importlib.import_module(f"{package}.leaf")
    assert len(calls) == 1


def test_the_module_keeps_its_own_loader(package: str) -> None:
    imports.after_import(f"{package}.leaf", lambda module: None)
    module = importlib.import_module(f"{package}.leaf")
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"


def test_a_watched_module_that_does_not_exist_is_still_an_import_error(package: str) -> None:
    imports.after_import(f"{package}.nowhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.nowhere")
