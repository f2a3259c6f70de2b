"""Schemes and ports that requests may go to, over all destinations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.delivery.addresses import TargetRefusedError
from pipeline.settings import Settings

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class TargetRules:
    """``ports``: inclusive ranges."""

    ports: Sequence[tuple[int, int]] = ((1, PORT_MAX),)
    allow_http: bool = True

    def check(self, scheme: str, port: int) -> None:
        """Raises TargetRefusedError where no request may go there."""
        if scheme != "https" and not self.allow_http:
            raise TargetRefusedError("the URL is not https, and OUTRIDER_TARGET_HTTP is off")
        if not any(first <= port <= last for first, last in self.ports):
            raise TargetRefusedError(f"port {port} is none that OUTRIDER_TARGET_PORTS allows")


def target_rules(settings: Settings) -> TargetRules:
    """Those of the program's settings."""
    return TargetRules(settings.target_port_ranges, allow_http=settings.target_http)
