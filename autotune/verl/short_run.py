"""What a trial changes beside the Point under test, so that verl runs a few steps and nothing else.

None of these keys reaches an emitted script. Facts: verl 0.9.1 trainer/ppo/v1/trainer_base.py:467-530, 777.
"""

from __future__ import annotations

from pathlib import Path

from autotune.values import KnobValue
from autotune.verl.config import FlatConfig

_ALWAYS: dict[str, KnobValue] = {
    "trainer.total_epochs": 1_000_000,
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.resume_mode": "disable",
    "trainer.critic_warmup": 0,
    "trainer.rollout_data_dir": None,
    "trainer.validation_data_dir": None,
}


def short_run_overrides(config: FlatConfig, *, steps: int, run_dir: Path, ray_dir: Path) -> list[str]:
    """Hydra arguments that follow the user's own and the Point's.

    Args:
        config: the composed configuration; keys that this release does not have are left out.
        steps: training steps until verl ends by itself.
        run_dir: where checkpoints would go, if something made one, and where Hydra writes.
        ray_dir: folder of the private Ray cluster; must be short, since Ray's socket paths may have 107 characters.
    """
    overrides = [f"trainer.total_training_steps={steps}"]
    for key, value in _ALWAYS.items():
        if key in config:
            overrides.append(f"{key}={'null' if value is None else value}")
    overrides += [
        f"trainer.default_local_dir={quoted(run_dir / 'checkpoints')}",
        "trainer.logger=[console,file]",
        "++ray_kwargs.ray_init.address=local",
        f"++ray_kwargs.ray_init._temp_dir={quoted(ray_dir)}",
        f"hydra.run.dir={quoted(run_dir / 'hydra')}",
    ]
    return overrides


def quoted(path: Path) -> str:
    """A path as a Hydra value that cannot be taken for anything else."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
