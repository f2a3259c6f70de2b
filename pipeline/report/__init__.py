"""The reconciliation report: ledger, topics, audit and a receiver's own list compared, as of a watermark."""
