"""verl's synchronous trainer, doing one training step per order instead of following a plan.

Facts are those of verl 0.9.1. Batching is read per call from the batch's `extra_info` (workers/engine_workers.py:352, 406),
so that each phase gets its own; generation limits go to a scheduler of ours (`autotune.inside.scheduler`).

A *whole* step generates: the same prompts every time, with the lengths that the first step of the session had. A *frozen*
step trains on the trajectories of that first step and generates nothing; the rewards are those of then. A *generation* step
generates as a whole one and trains nothing; its rewards are called, or given back as recorded (`autotune.inside.rewards`).
A *longest* step is a frozen one whose trajectories are stretched to the job's limits, for the memory that they take.

The trajectories stay in this process' memory: nothing is unpickled from a folder, and nothing of them outlives the session.
The learning rate is 0 (the launch sets it), so that all steps start from the same weights, which are thrown away.
"""

import hashlib
import os
import traceback
from collections.abc import Callable
from typing import Any

import ray
import transfer_queue as tq
import verl
from omegaconf import OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer

from autotune.inside import rewards, wire, worker_reports
from autotune.inside.replay_loop import LENGTHS, NAME
from autotune.inside.session import MODE
from autotune.inside.stretched import NotStretchable, stretched

WHOLE, FROZEN, GENERATION, LONGEST = "whole", "frozen", "generation", "longest"
HELD = (FROZEN, LONGEST)
"""Work that generates nothing."""
BATCHING = ("use_dynamic_bsz", "max_token_len_per_gpu", "micro_batch_size_per_gpu")
"""What a phase may be given; verl takes what is absent from its engine's configuration."""
SINGLE_TURN = "single_turn_agent"
_PER_MINI_BATCH = ("loss", "grad_norm", "pg_loss", "ppo_kl", "pg_clipfrac", "kl_loss", "vf_loss")


class PointFailed(RuntimeError):
    """The step ran but measured something else than was asked for."""


class _Held:
    """The prompts and trajectories of the first whole step."""

    def __init__(self) -> None:
        self.prompts: Any = None
        self.lengths: list[list[int]] | None = None
        """Length of each response of each prompt, tokens; None: not recorded, or not replayable."""
        self.fields: Any = None
        self.tags: list[dict[str, Any]] = []
        self.places: list[tuple[int, str]] = []
        """Of each trajectory: which prompt, and the rest of its key (`session_index`)."""
        self.digest = ""
        self.rewards: list[list[list[float]]] | None = None
        """Score and seconds of each response of each prompt, of the last step that recorded them; None: of none."""

    def sequences(self) -> list[int]:
        """Tokens of each trajectory, prompt and response (agent_loop_tq.py:210)."""
        return [int(tag["seq_len"]) for tag in self.tags if "seq_len" in tag]


class _OrderingLogger:
    """verl's logger, followed by the session's answer: the one place after everything of a step (trainer_base.py:518)."""

    def __init__(self, logger: Any, after: Callable[[dict[str, Any]], None]) -> None:
        self._logger = logger
        self._after = after

    def log(self, data: dict[str, Any], step: int) -> None:
        if data:
            self._logger.log(data=data, step=step)
        self._after(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


@register_trainer(MODE)
class SessionTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl is not there where types are checked
    """Steps on demand."""

    logger: Any

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = (
                "sync"  # verl compares with this name in many places (trainer_base.py:153, 1499)
            )
        super().__init__(config)
        self._held = _Held()
        self._order: dict[str, Any] = {"work": WHOLE, "settings": {}}
        self._settings: tuple[dict[str, Any], bool] | None = None
        """In effect, and for longest trajectories or not: peaks of memory are told apart by both."""
        self._usual_poll = getattr(self.replay_buffer, "poll_interval", None)
        self._usual_values: dict[str, Any] = {}
        self._phase = "gen"
        self._error: str | None = None
        self._updates: dict[str, dict[str, list[float]]] = {}
        self._names: list[str] = []
        self._generated: list[str] = []
        self._digest = ""
        self._why_called: str | None = None
        self._wire: wire.Wire | None = None
        self._devices: list[dict[str, Any]] | None = None
        self._lengths_told = False

    # -- orders ----------------------------------------------------------------------------------------------------------

    def on_train_begin(self) -> None:
        super().on_train_begin()
        for name, group, method in self._updaters():
            setattr(group, method, self._recorded(name, getattr(group, method)))
        engines = self._engines({})
        self._wire = wire.connect(
            os.environ[wire.SOCKET],
            os.environ[wire.TOKEN],
            {
                "verl": verl.__version__,
                "world_size": self.actor_rollout_wg.world_size,
                "engines": engines,
                "poll_seconds": self._usual_poll,
            },
        )
        self.logger = _OrderingLogger(self.logger, self._answer)
        self._take_order()

    def _take_order(self) -> None:
        """Waits for the next order; outside of every timer of verl's."""
        assert self._wire is not None
        while True:
            try:
                order = self._wire.receive()
            except wire.WireClosed:
                order = {"type": "end"}
            assert order is not None
            if order["type"] != "step":
                self.total_training_steps = self.global_steps  # the loop ends after this step (trainer_base.py:467)
                return
            self._order = order
            try:
                self._apply(order["settings"])
            except Exception as error:  # noqa: BLE001  # whatever a Point's settings do must not end the session
                self._send_failure("settings", error, survived=True)
                continue
            return

    def _apply(self, settings: dict[str, Any]) -> None:
        wanted = (settings, self._order["work"] == LONGEST)
        if wanted == self._settings:
            return
        self._settings = None  # what is half applied must be applied again
        self._engines(settings.get("engine") or {})
        poll = settings.get("poll_seconds")
        if self._usual_poll is not None:
            self.replay_buffer.poll_interval = self._usual_poll if poll is None else poll
        for key, value in {**self._usual_values, **settings.get("trainer", {})}.items():
            self._usual_values.setdefault(key, OmegaConf.select(self.config, key))
            OmegaConf.update(self.config, key, value, force_add=False)
        ray.get([worker.__ray_call__.remote(worker_reports.begin_point) for worker in self.actor_rollout_wg.workers])
        self._settings = wanted

    def _engines(self, limits: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Sets the limits of every replica (None: only asks); what each says is in effect."""
        handles = self.llm_server_manager.server_handles
        answers: list[dict[str, Any]] = ray.get([handle.autotune_live.remote(limits) for handle in handles])
        return answers

    def _answer(self, metrics: dict[str, Any]) -> None:
        """Tells what the step was, then waits for the next order."""
        if self._error is None:
            workers = ray.get(
                [worker.__ray_call__.remote(worker_reports.report) for worker in self.actor_rollout_wg.workers]
            )
            self._send(
                {
                    "type": "step",
                    "id": self._order["id"],
                    "step": self.global_steps,
                    "work": self._order["work"],
                    "metrics": {name: _number(value) for name, value in metrics.items()},
                    "updates": self._updates,
                    "workers": workers,
                    "engines": self._engines(None),
                    "digest": self._digest,
                    "lengths_replayed": self._held.lengths is not None,
                    "reward_called_because": self._why_called,
                    "poll_seconds": getattr(self.replay_buffer, "poll_interval", None),
                    "devices": self._devices or [],
                    "sequence_lengths": self._lengths(),
                }
            )
            self._lengths_told = bool(self._held.tags)
        self._error = None
        self._updates = {}
        self._take_order()

    def _lengths(self) -> list[int]:
        """Tokens of the trajectories that are trained on: the held ones are told once."""
        if self._order["work"] == LONGEST:
            rollout = self.config.actor_rollout_ref.rollout
            return [int(rollout.prompt_length + rollout.response_length)] * len(self._held.tags)
        return [] if self._lengths_told else self._held.sequences()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._wire is not None
        try:
            self._wire.send(message)
        except wire.WireClosed:
            return  # noticed again when the next order is waited for

    def _send_failure(self, phase: str, error: BaseException, *, survived: bool) -> None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        print(text, flush=True)
        self._send(
            {"type": "failure", "id": self._order["id"], "phase": phase, "error": text[-20_000:], "survived": survived}
        )

    # -- steps -----------------------------------------------------------------------------------------------------------

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        self._phase = "gen"
        try:
            return super().step(metrics, timing_raw)
        except Exception as error:
            # On more than one rank the others wait in a collective for the one that failed: nothing can go on there.
            survived = self.actor_rollout_wg.world_size == 1
            self._error = self._phase
            self._send_failure(self._phase, error, survived=survived)
            if not survived:
                raise
            ray.get([worker.__ray_call__.remote(worker_reports.give_back) for worker in self.actor_rollout_wg.workers])
            if self._phase == "gen":
                self.on_sample_end()
            return self._left_over()

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> Any:
        if self._order["work"] != GENERATION:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        with marked_timer("gen", timing_raw):  # as trainer_base.py:562-573
            self.on_sample_begin()
            batch, sampled = self.replay_buffer.sample(
                global_steps=self.global_steps, partition_id="train", batch_size=sample_batch_size
            )
            metrics.update(sampled)
            self.on_sample_end()
        self._check_all_there(batch)
        self._generated = list(batch.keys)
        return batch

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self._phase = "balance"

    def _left_over(self) -> Any:
        """What the failed step left in the queue, for verl to clear (trainer_base.py:514)."""
        items = (tq.kv_list("train") or {}).get("train", {})
        return KVBatchMeta(partition_id="train", keys=list(items), tags=list(items.values()))

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], *args: Any, **kwargs: Any
    ) -> None:
        if self._error is not None:
            metrics.clear()
        elif self._order["work"] == GENERATION:  # verl's own wants advantages and returns
            metrics.update({f"timing_s/{name}": seconds for name, seconds in timing_raw.items()})
            metrics["perf/time_per_step"] = timing_raw["step"]
            metrics["perf/total_num_tokens"] = sum(tag["seq_len"] for tag in batch.tags)
        else:
            super()._compute_metrics(batch, metrics, timing_raw, *args, **kwargs)
        if self._error is None and self._order["work"] not in HELD:
            metrics.update(self._tell_rewards(batch.partition_id))

    def _tell_rewards(self, partition: str) -> dict[str, float]:
        """What the rewards of this step came to, recorded where that was ordered; outside of verl's timers."""
        data = tq.kv_batch_get(keys=self._generated, partition_id=partition, select_fields=["metrics", "extra_fields"])
        seconds = [float(told.get("compute_score", 0.0)) for told in _plain(data["metrics"])]
        replayed = [bool(told.get(rewards.REPLAYED)) for told in _plain(data["extra_fields"])]
        held = self._held
        wanted = self._order.get("reward") == rewards.RECORD or held.rewards is None
        if wanted and self._order["work"] == WHOLE and held.lengths is not None and not self._scores_after_generation:
            data = tq.kv_batch_get(keys=self._generated, partition_id=partition, select_fields=["rm_scores"])
            place = {name: index for index, name in enumerate(self._names)}
            scored = []
            for key, row, took in zip(self._generated, data["rm_scores"].unbind(), seconds, strict=True):
                name, response, _ = key.split("_")
                scored.append((place[name], int(response), float(row[-1]), took))  # the score is the last token's
            held.rewards = rewards.table(scored, prompts=len(held.lengths), samples=len(held.lengths[0]))
        return rewards.tally(seconds, replayed)

    @property
    def _scores_after_generation(self) -> bool:
        return self.reward_loop_manager.reward_loop_worker_handles is None

    def _add_batch_to_generate(self) -> None:
        fetched = self._next_train_batch()  # also where it is not used: fetching is part of a step
        if self._held.prompts is None:
            self._held.prompts = fetched
        self._why_called = None
        if self._order["work"] in HELD:
            self._put_held(fetched)
        else:
            self._submit_batch_to_rollout(self._prompts(fetched))

    def _prompts(self, fetched: Any) -> Any:
        """The held prompts under new names, with the lengths of their responses where those are known."""
        prompts = self._held.prompts.copy()
        names = list(fetched["uid"])
        tu.assign_non_tensor_stack(prompts, "uid", names)
        tu.assign_non_tensor_data(prompts, "global_steps", self.global_steps)
        self._names = names
        if self._held.lengths is not None:
            tu.assign_non_tensor_stack(prompts, LENGTHS, [list(lengths) for lengths in self._held.lengths])
        loops = [self.config.actor_rollout_ref.rollout.agent.default_agent_loop]
        if "agent_name" in prompts:
            loops = [NAME if loop == SINGLE_TURN else loop for loop in prompts["agent_name"]]
            tu.assign_non_tensor_stack(prompts, "agent_name", loops)
        if self._order.get("reward") == rewards.REPLAY:
            self._why_called = self._not_replayable(loops)
            if self._why_called is None:
                tu.assign_non_tensor_stack(prompts, rewards.REWARDS, [list(told) for told in self._held.rewards or []])
        return prompts

    def _not_replayable(self, loops: list[str]) -> str | None:
        """Why rewards are called although they were to be replayed; None: they are replayed."""
        if self._scores_after_generation:
            return rewards.COLOCATED
        if self._held.fields is not None and self._held.lengths is None:
            return rewards.TURNS
        if any(loop != NAME for loop in loops):
            return rewards.OWN_LOOP
        return rewards.NOT_RECORDED if self._held.rewards is None else None

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Between generation with rewards and everything else: checks that all is there, and keeps the first batch."""
        self._check_all_there(batch)
        if self._order["work"] == FROZEN:
            self._digest = _digest(batch)
            if self._digest != self._held.digest:
                raise PointFailed("the frozen trajectories are not those that were recorded")
            self._look_around()
        elif self._order["work"] == LONGEST:
            self._digest = ""
        else:
            self._digest = ""
            self._generated = list(batch.keys)
            if self._held.fields is None:
                self._hold(batch)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _look_around(self) -> None:
        """Asks once what a device holds besides the trainer: before the first frozen step's training, when vLLM sleeps and the
        collectives have been used. That step settles, so that asking costs no counted one anything."""
        if self._devices is None:
            workers = self.actor_rollout_wg.workers
            self._devices = ray.get([worker.__ray_call__.remote(worker_reports.surroundings) for worker in workers])

    def _check_all_there(self, batch: Any) -> None:
        """verl goes on with synthetic rows in the place of responses that failed (padding_utils.py:42), which look fast."""
        wanted = len(self._held.prompts) * self.config.actor_rollout_ref.rollout.n
        if len(batch.keys) < wanted:
            raise PointFailed(f"{wanted - len(batch.keys)} of {wanted} responses failed in generation")

    # -- the first batch -------------------------------------------------------------------------------------------------

    def _hold(self, batch: Any) -> None:
        held = self._held
        place = {name: index for index, name in enumerate(self._names)}
        held.fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        held.tags = [dict(tag) for tag in batch.tags]
        for key in batch.keys:
            name, _, rest = key.partition("_")
            held.places.append((place[name], rest))
        held.digest = _digest(batch)
        lengths: list[dict[int, int]] = [{} for _ in self._names]
        for (prompt, rest), tag in zip(held.places, held.tags, strict=True):
            response, _, part = rest.partition("_")
            if part != "0":
                return  # several outputs of one response: the loop took turns, whose lengths we cannot ask for
            lengths[prompt][int(response)] = int(tag["response_len"])
        turns = [int(number) for number in held.fields["num_turns"]]
        samples = self.config.actor_rollout_ref.rollout.n
        complete = all(sorted(of_prompt) == list(range(samples)) for of_prompt in lengths)
        if complete and max(turns) <= 2 and min(min(of_prompt.values()) for of_prompt in lengths) > 0:
            held.lengths = [[of_prompt[response] for response in range(samples)] for of_prompt in lengths]

    def _put_held(self, fetched: Any) -> None:
        """The held trajectories under the new prompts' names, as if they had just been generated."""
        held = self._held
        if held.fields is None:
            raise PointFailed("frozen work was ordered before a whole step was done")
        names = list(fetched["uid"])
        steps = {"global_steps": self.global_steps, "min_global_steps": self.global_steps - 1}
        steps["max_global_steps"] = steps["min_global_steps"]
        fields, tags = held.fields.copy(), held.tags
        if self._order["work"] == LONGEST:
            rollout = self.config.actor_rollout_ref.rollout
            try:
                fields, tags = stretched(fields, tags, prompt=rollout.prompt_length, response=rollout.response_length)
            except NotStretchable as problem:
                raise PointFailed(str(problem)) from problem
        if "uid" in fields:
            tu.assign_non_tensor_stack(fields, "uid", [names[prompt] for prompt, _ in held.places])
        tq.kv_batch_put(
            keys=[f"{names[prompt]}_{rest}" for prompt, rest in held.places],
            fields=fields,
            tags=[{**tag, **steps} for tag in tags],
            partition_id="train",
        )
        done = {"is_prompt": True, "status": "finished", "global_steps": self.global_steps}
        tq.kv_batch_put(keys=names, partition_id="train", tags=[dict(done) for _ in names])

    def _compute_reward_colocate(self, batch: Any, metrics: Any = None) -> Any:
        if self._order["work"] in HELD:
            return batch  # the held trajectories have their scores
        return super()._compute_reward_colocate(batch, metrics=metrics)

    # -- phases ----------------------------------------------------------------------------------------------------------

    def _in_phase(
        self, phase: str, batch: Any, run: Callable[..., Any], metrics: dict[str, Any], sizes_of: str | None = None
    ) -> Any:
        """Runs a phase with its own batching. It is taken out again afterwards: some phases hand on the same meta
        (trainer_base.py:1719, 1741), and a later phase must not get what was meant for an earlier one."""
        self._phase = phase
        batching = (self._order["settings"].get("phases") or {}).get(sizes_of or phase, {})
        batch.extra_info.update({name: batching[name] for name in BATCHING if name in batching})
        result = run(batch, metrics)
        for meta in (batch, result):
            info = getattr(meta, "extra_info", None) or {}
            for name in BATCHING:
                info.pop(name, None)
        return result

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._in_phase("old_log_prob", batch, super()._compute_old_log_prob, metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        # A reference that is the actor without its adapter runs on the actor's engine, with its sizes (engine_workers.py:407).
        sizes_of = "old_log_prob" if self.ref_in_actor else None
        return self._in_phase("ref", batch, super()._compute_ref_log_prob, metrics, sizes_of)

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._in_phase("values", batch, super()._compute_values, metrics)

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._in_phase("update_critic", batch, super()._update_critic, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._in_phase("update_actor", batch, super()._update_actor, metrics)

    def _updaters(self) -> list[tuple[str, Any, str]]:
        found = [("actor", self.actor_rollout_wg, "update_actor")]
        if self.use_critic:
            found.append(("critic", self.critic_wg, "train_mini_batch"))
        return found

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method` of a worker group, with loss and gradient norm of each mini-batch kept: verl averages them afterwards
        (trainer_base.py:1861)."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            output = method(*args, **kwargs)
            if hasattr(output, "get") and hasattr(output, "futures"):
                output = _Ready(output.get())
                told = output.get()["metrics"]
            else:
                told = output["metrics"]
            self._updates[name] = {key: _numbers(told[key]) for key in _PER_MINI_BATCH if key in told}
            return output

        return recorded


class _Ready:
    """A future that has come."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value


def _plain(column: Any) -> list[Any]:
    """A column of dictionaries as such; depending on the queue's backend it comes as a list or wrapped one by one."""
    return [getattr(value, "data", value) for value in column]


def _numbers(values: Any) -> list[float]:
    """One number per mini-batch; verl's own metric objects hold theirs in `values`."""
    values = getattr(values, "values", values)
    return [float(value) for value in (values if isinstance(values, (list, tuple)) else [values])]


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _digest(batch: Any) -> str:
    """A digest of the batch's tokens, in the order of its keys without their prompt's name."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
    rows = data["input_ids"].unbind()
    hashes = [hashlib.sha256(row.numpy().tobytes()).digest() for row in rows]
    return hashlib.sha256(b"".join(sorted(hashes))).hexdigest()
