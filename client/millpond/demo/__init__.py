"""The demonstration: from nothing to an exact bill on this machine. May import the client and the local stack."""
