"""Where log text lies and how waiting polls are woken. May import the domain, the kernel and the contracts."""
