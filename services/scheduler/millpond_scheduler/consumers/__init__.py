"""Views of what registry, quota and billing publish. May import use cases and what lies below them."""
