"""The scheduler over recorded jobs under a virtual clock: what it would place, refuse and fragment.

May import the domain and the contracts. The decisions are `plan_batch`'s, on the domain's own snapshot: nothing here
places a task by itself, except for the baselines, which exist to be compared with.

In reading order: `traces` (lists of nodes and jobs), `pool` (a list of nodes as a snapshot), `arrivals` (jobs in the
order of a seed), `fragments` (the published measure), the protocols `openb` and `replay`, `reports`. `python -m
millpond_scheduler.simulation` is what `millpond simulate placement` starts.
"""
