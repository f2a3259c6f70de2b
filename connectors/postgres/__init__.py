"""The PostgreSQL side: pgoutput and values decoded without I/O, the replication stream, the slot."""
