"""Faults of every kind against a whole split stack under load, judged from outside: `make chaos SEED=1 DURATION_S=60`.

`plan` says what happens, by its seed alone; `faults` do it; `load` asks for things and keeps a history; `wire` stands
between the nodes and the gateway; `armed` runs the stack with its fail points armed; `running` puts them together and
has `tests.system.checker` judge. One JSON line comes out.
"""
