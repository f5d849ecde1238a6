"""Who creates and releases nodes: one protocol, and a provider of simulated nodes."""
