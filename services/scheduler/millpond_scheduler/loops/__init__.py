"""Control loops: the leader of the cycle, leases, drains, time limits, recounts, retention."""
