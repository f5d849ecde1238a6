"""SQL of the registry: one module per noun. May import the domain and the kernel."""
