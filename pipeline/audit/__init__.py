"""A consumer group that keeps, for each message of the topics, what it said: evidence apart from the ledger."""
