"""The given launch scripts, each with what bash and Hydra make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import LaunchError, read_launch

CASES = sorted((Path(__file__).parents[1] / "cases" / "scripts").glob("*.json"))


def _read(case: dict[str, Any], path: Path) -> Any:
    assumed = case["assumed"]
    return read_launch(
        path.with_name(case["source"]),
        env=assumed["env"],
        cwd=assumed["cwd"],
        home=assumed["home"],
        args=assumed["args"],
    )


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_a_script_is_read_as_bash_and_hydra_would(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    if "expect_error" in case:
        with pytest.raises(LaunchError) as caught:
            _read(case, path)
        expected = case["expect_error"]
        assert (caught.value.code, caught.value.line) == (expected["code"], expected["line"])
        for part in expected["message_contains"]:
            assert part in caught.value.message
        for missing in case.get("also_missing", []):
            assert missing["name"] in caught.value.message
        return
    launch = _read(case, path).to_json()
    expected = case["expected"]
    for name in ("launcher", "entrypoint", "hydra_flags", "env"):
        assert launch[name] == expected[name], name
    ours = [{name: o[name] for name in ("op", "key", "value", "typed")} for o in launch["overrides"]]
    assert ours == [{name: o[name] for name in ("op", "key", "value", "typed")} for o in expected["overrides"]]
    assert [type(o["typed"]) for o in ours] == [type(o["typed"]) for o in expected["overrides"]]
    last = {o["key"]: o["typed"] for o in ours}
    assert {key: last[key] for key in expected["tunables_and_shape"]} == expected["tunables_and_shape"]
    assert launch["passthrough"] == case["passthrough"]
    if "wrappers" in case:
        assert launch["wrappers"] == case["wrappers"]
    assert launch["unresolved"] == case.get("unresolved", [])
    wanted = sorted((finding["code"], finding["line"] or 0) for finding in case.get("lint", []))
    assert sorted((finding["code"], finding["line"] or 0) for finding in launch["lint"]) == wanted
