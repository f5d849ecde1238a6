"""Tells the truth about one machine and runs tasks on it, over connections that it opens itself.

May import: the contracts and the base install, nothing of the server. Inside: `hardware` and `runtimes` know nothing of
the control plane; `spool` knows the runtimes; the modules beside them tie the three together.
"""
