"""The command line: one noun, one file. Speaks through the client alone; may import `millpond.stack`, no server."""
