"""The value model of GAE on a machine without FlashAttention-2.

verl 0.9.1 loads it with `attn_implementation="flash_attention_2"` whatever the configuration says (utils/model.py:649); the
import of flash_attn then fails, and the error that surfaces asks for trl. Naming a module in `critic.model.external_lib` does
not reach the worker in the v1 trainer, hence the plugin.
"""

from typing import Any

from autotune.inside.imports import after_import


def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """verl's function of this name, with the attention that the model's configuration names; `sdpa` if it names none."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        pretrained_model_name_or_path=local_path,
        torch_dtype=torch_dtype,
        config=model_config,
        attn_implementation=getattr(model_config, "_attn_implementation", None) or "sdpa",
        trust_remote_code=trust_remote_code,
    )


def _replace(module: Any) -> None:
    module.load_valuehead_model = load_valuehead_model


def install() -> None:
    """Puts it in the place of verl's own once verl imports the module concerned."""
    after_import("verl.utils.model", _replace)
