"""An earlier version and this one side by side on one database, under load, judged by the independent checker.

`front` stands where an operator's proxy stands, `versions` has both versions and starts their processes, `running`
replaces one by the other as `docs/upgrading.md` says.
"""
