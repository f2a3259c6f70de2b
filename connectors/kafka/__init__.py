"""The Kafka side: a transactional sink, and the source position stored in the same transactions."""
