"""Many simulated nodes in one process: each a node like any other to the control plane, none of them a machine.

Their agents are the real ones: key, session, heartbeat, lease, long poll and reports over real HTTP. Only the hardware
(`machines`) and what tasks do (`acting`, `runtime`) are made up, from a description (`descriptions`) that may change at
any time (`fleet`). Source: decision 17.
"""
