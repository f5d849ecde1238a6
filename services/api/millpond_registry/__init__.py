"""The registry: which pools, nodes and devices exist, how they are, and what every pool can still take.

May import the kernel and the contracts. README.md is the map of this package.
"""
