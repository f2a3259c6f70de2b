"""What to type where the connector refuses to start."""

from __future__ import annotations

from connectors.start_plan import StartCase, StartPlan


def how_to_go_on(plan: StartPlan) -> str:
    """The command that helps where a start is refused."""
    if plan.case is StartCase.OTHER_SYSTEM:
        return (
            "If its rows are to go on in these topics, run outrider connector reset: the next start then publishes by"
            " id what the topics lack. Else set another OUTRIDER_TOPIC_PREFIX"
        )
    if plan.case is StartCase.FOREIGN_SLOT:
        return "Set OUTRIDER_CONNECTOR_SLOT"
    if plan.case is StartCase.LEFT_BEHIND:
        return "Set OUTRIDER_POSTGRES_DSN"
    return (
        "OUTRIDER_CONNECTOR_REPAIR=automatic outrider run connector makes the slot anew and publishes by id what the"
        " topics lack; outrider connector plan --count says how much that is"
    )
