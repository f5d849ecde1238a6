"""The HTTP routes: parse, authorise, open the unit of work, call one use case. No `try`, no SQL."""
