"""PostgreSQL to Kafka: committed rows of chosen tables, each in its topic exactly once.

``postgres`` reads logical replication, ``kafka`` writes transactions, ``router`` decides what a row
becomes, ``connector`` is the loop that joins them. Nothing here knows about webhooks: any table works
by configuration.
"""
