"""Finds, in bounded time, every delivery that waits for its turn, and hands it to Kafka again."""
