"""What the audit group shows to Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

MESSAGES = Counter("outrider_audit_messages", "Messages read.", ["topic"])
REPEATED = Counter("outrider_audit_repeated", "Messages that were recorded before, and changed nothing.")
DEFECTS = Counter("outrider_audit_defects", "Messages that could not be understood.", ["topic"])
BEHIND_SECONDS = Gauge("outrider_audit_behind_seconds", "Age of the newest message recorded last; 0 where none waits.")
