"""The search space: for every knob a ladder of values, for every Point a place on each ladder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from autotune.values import KnobValue, Point


@dataclass(frozen=True, slots=True)
class Dimension:
    """One knob with the values that may be tried, in ladder order; the user's own value is among them."""

    key: str
    choices: tuple[KnobValue, ...]

    def index(self, value: KnobValue) -> int:
        """Rung of `value`.

        Raises:
            ValueError: the value is on no rung.
        """
        for rung, choice in enumerate(self.choices):
            if type(choice) is type(value) and choice == value:
                return rung
        raise ValueError(f"{value!r} is not on the ladder of {self.key}: {self.choices}")


@dataclass(frozen=True, slots=True)
class Space:
    """A flat space of integer rungs. Knobs asleep at a Point keep their rung; `canonical` Points tell what really differs."""

    dimensions: tuple[Dimension, ...]
    baseline: Point
    fixed: tuple[tuple[str, str], ...] = ()
    """Knobs left out of the search with the reason, for the report."""

    @property
    def size(self) -> int:
        """How many combinations there are."""
        total = 1
        for dimension in self.dimensions:
            total *= len(dimension.choices)
        return total

    def points(self) -> Iterator[Point]:
        """Every combination."""
        for rungs in product(*(range(len(dimension.choices)) for dimension in self.dimensions)):
            yield self.point({dimension.key: rung for dimension, rung in zip(self.dimensions, rungs, strict=True)})

    def point(self, rungs: Mapping[str, int]) -> Point:
        """The Point at these rungs; knobs that are not named keep the user's value."""
        values = self.baseline.as_dict()
        for dimension in self.dimensions:
            if dimension.key in rungs:
                values[dimension.key] = dimension.choices[rungs[dimension.key]]
        return Point.of(values)

    def rungs(self, point: Point) -> dict[str, int]:
        """The rungs of a Point of this space.

        Raises:
            ValueError: a value of it is on no rung.
        """
        values = point.as_dict()
        return {dimension.key: dimension.index(values[dimension.key]) for dimension in self.dimensions}

    def with_values(self, values: Mapping[str, KnobValue], start: Point | None = None) -> Point:
        """`start` (or the user's own Point) with some values changed; keys outside the space are ignored."""
        known = {dimension.key for dimension in self.dimensions}
        base = (start or self.baseline).as_dict()
        return Point.of({**base, **{key: value for key, value in values.items() if key in known}})

    def nearest(self, key: str, wanted: float) -> KnobValue:
        """The largest rung that is at most `wanted`, or the lowest one."""
        choices = self.dimension(key).choices
        at_most = [c for c in choices if isinstance(c, (int, float)) and not isinstance(c, bool) and c <= wanted]
        return max(at_most, default=choices[0])

    def dimension(self, key: str) -> Dimension:
        """The dimension of a knob.

        Raises:
            KeyError: it is not searched.
        """
        for dimension in self.dimensions:
            if dimension.key == key:
                return dimension
        raise KeyError(key)

    def __contains__(self, key: str) -> bool:
        return any(dimension.key == key for dimension in self.dimensions)


def ladder_with(choices: Sequence[KnobValue], own: KnobValue) -> tuple[KnobValue, ...]:
    """A ladder that holds the user's own value: numbers in order, anything else with it in front."""
    unique: list[KnobValue] = []
    for choice in [*choices, own]:
        if not any(type(choice) is type(have) and choice == have for have in unique):
            unique.append(choice)
    numbers = [c for c in unique if isinstance(c, (int, float)) and not isinstance(c, bool)]
    if len(numbers) == len(unique):
        return tuple(sorted(numbers))
    return tuple(unique) if own in choices else (own, *unique[:-1])
