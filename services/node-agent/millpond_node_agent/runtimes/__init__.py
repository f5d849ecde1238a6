"""Runs tasks on this machine and answers what became of them, whatever happens to the agent meanwhile.

May import: the standard library, its own modules. `launcher` and what it imports (`boottime`, `groups`, `logfile`,
`runfolder`) run once per task, so they stay small: no dataclasses, no pathlib, no third party.
"""
