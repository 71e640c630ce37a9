"""Laying out the code that runs inside verl's processes, as a folder for PYTHONPATH.

Only that code is on the path: the user's interpreter needs no autotune, and gets nothing else of ours or of what is
installed beside us.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import autotune

_INSIDE = Path(autotune.__file__).resolve().parent / "inside"
_PLUGIN = "autotune.inside.plugin"

CPU_ENVIRONMENT: Mapping[str, str] = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # FSDP engines are registered for accelerators only (fsdp/transformer_impl.py:1143)
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What verl and vLLM need to be told where there is no accelerator."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A folder that was laid out."""

    folder: Path
    cpu: bool

    def apply(self, env: Mapping[str, str], echo_dir: Path | None) -> dict[str, str]:
        """`env` with the payload in it: its folder first on PYTHONPATH, its module among verl's external ones.

        Args:
            env: the environment of a launch.
            echo_dir: where the processes report the values in effect; None: nowhere.
        """
        merged = dict(env)
        merged["PYTHONPATH"] = os.pathsep.join([str(self.folder), *_parts(env.get("PYTHONPATH"), os.pathsep)])
        modules = [name for name in _parts(env.get("VERL_USE_EXTERNAL_MODULES"), ",") if name != _PLUGIN]
        merged["VERL_USE_EXTERNAL_MODULES"] = ",".join([_PLUGIN, *modules])
        if self.cpu:
            merged.update(CPU_ENVIRONMENT)
        if echo_dir is not None:
            merged["AUTOTUNE_ECHO_DIR"] = str(echo_dir)
        return merged


def write_payload(folder: Path, *, cpu: bool, vllm_cpu_version: str | None) -> Payload:
    """Lays the payload out under `folder`, replacing an older one.

    Args:
        cpu: whether the job runs without an accelerator.
        vllm_cpu_version: version of the distribution `vllm-cpu`; verl and vLLM ask for a distribution named `vllm`
            (third_party/vllm/__init__.py:37), so that an alias of that name is laid beside. None: vLLM is installed
            under its own name.
    """
    folder = folder.resolve()
    package = folder / "autotune"
    if package.exists():
        shutil.rmtree(package)
    shutil.copytree(_INSIDE, package / "inside", ignore=shutil.ignore_patterns("__pycache__"))
    # Of an older payload: a second alias of vllm would leave it to chance which version is found, and a second entry point
    # would run the plugin twice.
    for pattern in ("autotune_inside-*.dist-info", "vllm-*.dist-info"):
        for stale in folder.glob(pattern):
            shutil.rmtree(stale)
    (package / "__init__.py").write_text('"""The part of autotune that runs inside verl."""\n', encoding="utf-8")
    _distribution(
        folder / f"autotune_inside-{autotune.__version__}.dist-info",
        "autotune-inside",
        autotune.__version__,
        entry_points="[vllm.general_plugins]\nautotune = autotune.inside.vllm_plugin:register\n",
    )
    if vllm_cpu_version is not None:
        version = f"{vllm_cpu_version.split('+')[0]}+cpu"
        _distribution(folder / f"vllm-{version}.dist-info", "vllm", version)
    return Payload(folder, cpu)


def _distribution(folder: Path, name: str, version: str, *, entry_points: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    if entry_points:
        (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")


def _parts(text: str | None, separator: str) -> list[str]:
    return [part for part in (text or "").split(separator) if part]
