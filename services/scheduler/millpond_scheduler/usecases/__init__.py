"""One intent each, in a transaction that the caller opened. May import store, providers and domain."""
