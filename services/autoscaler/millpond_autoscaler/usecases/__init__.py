"""One transaction's intent each, and the passes of the loops. May import store, clients, providers and domain."""
