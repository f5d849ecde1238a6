"""The Python client and the command line against the real services, over HTTP on loopback."""
