"""The sources of ``OUTRIDER_SOURCES_DIRECTORY``, with what is wrong in them as one line."""

from __future__ import annotations

from pipeline.cli.errors import CommandError
from pipeline.cli.output import visible
from pipeline.reconcile.source_file import Source, SourceFileError, read_sources
from pipeline.settings import Settings


def configured_sources(settings: Settings) -> dict[str, Source]:
    """By source id; none where no directory is set. Raises CommandError."""
    if settings.sources_directory is None:
        return {}
    try:
        return read_sources(settings.sources_directory)
    except SourceFileError as error:
        raise CommandError(str(error)) from None


def configured_source(settings: Settings, source_id: str) -> Source:
    """Raises CommandError where it is not there."""
    if settings.sources_directory is None:
        raise CommandError("OUTRIDER_SOURCES_DIRECTORY is not set: point it at the folder with the sources' files")
    sources = configured_sources(settings)
    if source_id not in sources:
        known = ", ".join(sources) or "none"
        raise CommandError(f"no source {visible(source_id)} in {settings.sources_directory}; there are: {known}")
    return sources[source_id]
