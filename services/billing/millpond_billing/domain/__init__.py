"""What was used and what it costs, as pure functions: facts -> timeline -> segments -> charges -> statement.

Imports only the standard library and the contracts; no clock, no session, no I/O. Instants are whole microseconds since
1970 in UTC, intervals are half-open `[start, end)`, amounts are integers, money is an exact decimal.

Reading order: facts, timeline, segments, prices, rating, periods, statements, conservation.
"""
