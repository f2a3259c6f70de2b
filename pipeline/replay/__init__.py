"""Deliveries that are dispatched again, or restored, from the topics or the ledger: counted, planned, run on the record."""
