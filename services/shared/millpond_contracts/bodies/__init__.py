"""Bodies exchanged over HTTP between people, services and agents. Bodies that come in forbid unknown fields."""
