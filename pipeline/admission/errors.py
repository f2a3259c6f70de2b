"""Why an admission was refused. After any of these nothing has changed; the transaction must be rolled back."""

from __future__ import annotations

from typing import ClassVar


class AdmissionError(Exception):
    """The message names what is wrong; ``hint`` says what to do, where the database gave one."""

    sqlstate: ClassVar[str]

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class IdentityConflict(AdmissionError):  # noqa: N818 - named by what happened, as the others are
    """The event was admitted before with other bytes, type, content type or ``deliver_at``."""

    sqlstate = "OU001"


class UnknownDestination(AdmissionError):  # noqa: N818
    """A destination that was named does not exist."""

    sqlstate = "OU002"


class DisabledDestination(AdmissionError):  # noqa: N818
    """A destination that was named is disabled."""

    sqlstate = "OU003"


class PayloadTooLarge(AdmissionError):  # noqa: N818
    """The payload has more bytes than the ledger's setting allows."""

    sqlstate = "OU004"


class InvalidArgument(AdmissionError):  # noqa: N818
    """An argument is malformed; the message names it."""

    sqlstate = "OU005"


BY_SQLSTATE: dict[str, type[AdmissionError]] = {
    error.sqlstate: error
    for error in (IdentityConflict, UnknownDestination, DisabledDestination, PayloadTooLarge, InvalidArgument)
}
