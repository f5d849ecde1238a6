"""One transaction's intent each. May import store, domain, the kernel and the contracts."""
