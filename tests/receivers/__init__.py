"""A receiver that misbehaves in every way we know, for tests of the sender and of the worker."""
