"""Consumer offsets of any group: looked at, planned, applied on the record, and undone."""
