"""What the code inside verl may import, and the grammar it may use."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import autotune.inside

FILES = sorted(Path(autotune.inside.__file__).parent.glob("*.py"))
ALLOWED = {
    *sys.stdlib_module_names,
    *("verl", "vllm", "torch", "ray", "psutil", "transformers", "tokenizers", "pandas", "hydra", "omegaconf"),
    "transfer_queue",  # verl 0.9's v1 trainer does not start without it
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_imports_only_itself_and_what_a_verl_environment_has(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            ours = name == "autotune.inside" or name.startswith("autotune.inside.")
            assert ours or name.split(".")[0] in ALLOWED, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_parses_as_python_3_10(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


@pytest.mark.parametrize("name", ["hooks.py", "compose.py", "demo_assets.py"])
def test_files_that_stand_alone_import_nothing_of_ours(name: str) -> None:
    assert "from autotune" not in next(path for path in FILES if path.name == name).read_text(encoding="utf-8")
