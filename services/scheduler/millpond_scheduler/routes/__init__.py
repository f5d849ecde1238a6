"""HTTP routes for tenants, operators and agents. May import use cases and what lies below them."""
