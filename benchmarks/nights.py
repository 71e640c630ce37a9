"""Do nights find a slow-down, and do they keep quiet otherwise? SIMULATED: the trainer is a model of noise, the clock a counter.

python -m benchmarks.nights                    30 nights, 50 seeds: a phase is 6 % slower in night 20 and in no other
python -m benchmarks.nights --noise 0.03 --by 0.08

Everything between a night's measurements and its verdict is the real code. What is made up: the seconds of each step, with
noise of every phase in every step (2 %), and of every phase from night to night (0.2 %: what launches, neighbours and clocks do).
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from autotune.service.canary import canary_json, judge_canary
from autotune.store.schedules import NightRecord, NightState
from autotune.tuner.canary import CanarySeen
from autotune.values import Measurement, Point, StepRecord

PHASES: Mapping[str, float] = {
    "gen": 38.0,
    "old_log_prob": 9.0,
    "ref": 8.0,
    "update_actor": 31.0,
    "update_weights": 3.0,
    "adv": 0.1,
}
"""Seconds of a step of the user's command; nobody measured them."""
FASTER = {"gen": 0.7, "update_actor": 0.6}
"""Shares that the best setting takes."""
PLANTED = ("gen", "old_log_prob", "ref", "update_actor")
"""Phases in which a slow-down is planted, one a seed."""
TOKENS = 1_000_000
OWN, BEST = Point.of({"micro": 2}), Point.of({"micro": 16})


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer whose steps take as long as it says, and some noise."""

    dice: random.Random
    step_noise: float
    night: Mapping[str, float]
    """Factor of every phase in this night."""

    def measurement(self, point: Point, *, steps: int = 2) -> Measurement:
        """Some steps of one setting."""
        made = []
        for number in range(1, steps + 1):
            phases = {
                name: seconds
                * (FASTER.get(name, 1.0) if point == BEST else 1.0)
                * self.night[name]
                * math.exp(self.dice.gauss(0.0, self.step_noise))
                for name, seconds in PHASES.items()
            }
            made.append(StepRecord(number, sum(phases.values()) + 1.0, TOKENS, phases))
        return Measurement(tuple(made), 8, simulated=True)


def season(
    seed: int,
    *,
    nights: int,
    slow_night: int | None,
    by: float,
    noise: float,
    between: float,
    pairs: int = 5,
    creep: float = 0.0,
) -> tuple[str, list[dict[str, Any]]]:
    """The verdicts of one schedule, night by night, and the phase that was made slower.

    Args:
        slow_night: the one in which it is slower `by` that share; None: in none.
        creep: share by which it is slower every night than in the night before.
    """
    dice = random.Random(seed)
    phase = PLANTED[seed % len(PLANTED)]
    begin = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
    records: list[NightRecord] = []
    verdicts = []
    for number in range(1, nights + 1):
        factors = {name: math.exp(dice.gauss(0.0, between)) for name in PHASES}
        factors[phase] *= (1 + creep) ** number * (1 + by if number == slow_night else 1.0)
        trainer = Trainer(dice, noise, factors)
        turns = [(trainer.measurement(OWN), trainer.measurement(BEST)) for _ in range(pairs)]
        seen = CanarySeen(BEST, True, tuple(own for own, _ in turns), tuple(best for _, best in turns))
        canary = canary_json(seen, OWN)
        when = begin + timedelta(days=number - 1)
        verdict = judge_canary(canary, records, environment={}, script_hash="s", simulated=True, since=None)
        verdicts.append(verdict)
        records.append(
            NightRecord(
                id=number,
                schedule="simulated",
                schedule_id=1,
                slot=f"{when:%Y-%m-%dT%H:%M}",
                state=NightState.FINISHED,
                reason="",
                planned_at=when,
                until=when + timedelta(hours=4),
                started_at=when,
                ended_at=when,
                attempts=1,
                lease=None,
                study_id=None,
                study=None,
                script_hash="s",
                simulated=True,
                environment={},
                canary=canary,
                verdict=verdict,
            )
        )
    return phase, verdicts


@dataclass(frozen=True, slots=True)
class Score:
    """How many seeds out of all."""

    seeds: int
    found: int
    """Raised the alarm in the slow night, naming its phase first."""
    quiet: int
    """Raised none in any other night."""


def campaign(
    *, seeds: int, nights: int = 30, slow_night: int = 20, by: float = 0.06, noise: float = 0.02, between: float = 0.002
) -> Score:
    """Many seasons."""
    found = quiet = 0
    for seed in range(seeds):
        phase, verdicts = season(seed, nights=nights, slow_night=slow_night, by=by, noise=noise, between=between)
        alarms = [number for number, verdict in enumerate(verdicts, 1) if verdict["decision"] == "regression"]
        found += slow_night in alarms and verdicts[slow_night - 1]["phases"][:1] == [phase]
        quiet += all(number == slow_night for number in alarms)
    return Score(seeds, found, quiet)


def main() -> None:
    """Prints the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--slow-night", type=int, default=20)
    parser.add_argument("--by", type=float, default=0.06)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--between", type=float, default=0.002)
    given = parser.parse_args()
    score = campaign(**vars(given))
    print(
        f"SIMULATED. {score.seeds} seeds of {given.nights} nights, noise {given.noise:.1%} a step and {given.between:.1%} a night, "
        f"{given.by:.1%} slower in night {given.slow_night}: found and named {score.found / score.seeds:.0%}, "
        f"quiet in all other nights {score.quiet / score.seeds:.0%}"
    )


if __name__ == "__main__":
    main()
