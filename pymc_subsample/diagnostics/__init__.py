"""Whether a chain can be trusted: what it did, how far it is off, and what to say of it."""
