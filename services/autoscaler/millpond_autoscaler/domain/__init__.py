"""When a pool grows and shrinks, as pure functions: demand, load and facts -> one decision with its reason.

Imports only the standard library and the contracts; no clock, no session, no I/O. Reading order: demand, forecasts,
situation, deciding, orders, signals.
"""
