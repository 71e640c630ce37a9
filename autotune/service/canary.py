"""What a canary measured and what it means, in the form in which nights keep it.

`NightRecord.canary` is an object:

- `how`: `session` (whole steps of both settings in turns, in one launch of verl) or `launches` (a launch for each of them);
- `pairs`: how many pairs were measured;
- `own`, `best`: the user's command, and the best setting known when the night began (null: none was). Each has its `point`, the
  `throughput` of every pair (tokens/s/GPU), and `seconds`: by quantity (a phase, `rest`, or `step` for all of them) the seconds
  per thousand tokens of every pair; and `failure`, null or why it could not be measured.

`NightRecord.verdict` is an object:

- `decision`: `steady`, `regression`, `faster`, `no_reference` (no night to compare with yet), `not_comparable` (measured in
  another way, or with another script, than every night before) or `failed` (the user's command, or the best setting, could not be
  measured);
- `text`: one sentence for people;
- `phases`: the phases that an alarm names, the weightiest first;
- `tests`: one object for each `subject` (`own`, `best`) and `quantity` with its `change` (of its seconds, as a fraction: 0.06 is
  slower by 6 %), the `band` in which changes are noise, and whether it lies `beyond` it;
- `nights`: how many nights it was compared with;
- `environment`: what changed since those nights, one sentence each.

`ScheduleRecord.reference` is an object: the best setting's `point`, the `overrides` that its script changes (by key), its `gain`
over the user's command when it was confirmed, the `study` that found it, the `slot` of that night, and `script_hash`.
"""

from __future__ import annotations
