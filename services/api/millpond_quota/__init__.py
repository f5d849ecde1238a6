"""The quota service: knows what a tenant may hold. Tenants, projects, keys and roles, virtual pools, limits, alerts."""
