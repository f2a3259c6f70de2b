"""Debezium's outbox event router as a route of ours, and configurations for the real one, ready to POST."""
