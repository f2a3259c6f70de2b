"""Every way to misbehave. Names say what the receiver does; the decorator says what an attempt must end as.

An outcome is ambiguous exactly where the request had begun and no final status came, or where the status itself is.
"""

from __future__ import annotations

from tests.receivers import abused_bodies, abused_connections, abused_headers, abused_tls
from tests.receivers.behaviour import Behaviour

BEHAVIOURS: dict[str, Behaviour] = {
    **abused_bodies.CATALOGUE.behaviours,
    **abused_headers.CATALOGUE.behaviours,
    **abused_connections.CATALOGUE.behaviours,
    **abused_tls.CATALOGUE.behaviours,
}
