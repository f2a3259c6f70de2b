# The program without the embedded servers and without tests: docker build -t outrider:0.1.0 .
# Versions of packages are those of requirements.lock, checked by their hashes.

FROM python:3.11.13-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml requirements.lock deploy/locked.py ./
RUN mkdir deploy && mv locked.py deploy/ \
  && python deploy/locked.py > runtime.lock \
  && python deploy/locked.py hatchling editables > build.lock \
  && python -m venv /opt/outrider \
  && /opt/outrider/bin/pip install --require-hashes --only-binary :all: -r runtime.lock \
  && python -m venv /opt/build \
  && /opt/build/bin/pip install --require-hashes --only-binary :all: -r build.lock
# From here on only what changes with the code.
COPY README.md LICENSE ./
COPY pipeline pipeline
COPY connectors connectors
COPY topics topics
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
  && /opt/outrider/bin/pip install --no-deps /wheels/*.whl

FROM python:3.11.13-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin outrider
COPY --from=build /opt/outrider /opt/outrider
ENV PATH=/opt/outrider/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["outrider"]
CMD ["--help"]
