"""One transaction's intent each; every use case takes the open unit of work. May import store, clients and domain."""
