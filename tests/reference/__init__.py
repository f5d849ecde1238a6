"""Independent models that the product is compared with; nothing here imports a service."""
