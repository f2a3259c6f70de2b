"""Admission of events, and the API's listener."""

from pipeline.admission.admit import AdmittedDelivery, admit, admit_sync
from pipeline.admission.errors import (
    AdmissionError,
    DisabledDestination,
    IdentityConflict,
    InvalidArgument,
    PayloadTooLarge,
    UnknownDestination,
)

__all__ = [
    "AdmissionError",
    "AdmittedDelivery",
    "DisabledDestination",
    "IdentityConflict",
    "InvalidArgument",
    "PayloadTooLarge",
    "UnknownDestination",
    "admit",
    "admit_sync",
]
