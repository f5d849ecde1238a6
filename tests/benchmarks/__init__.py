"""Benchmarks of the whole chain: each starts what it measures, tells its figures, and checks the invariants it left."""
