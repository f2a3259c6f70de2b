"""A consumer group of its own on the attempts topic: success rate, attempts and latency for each minute."""
