# What the tools' code runs in, with `sandbox = "docker"`:
#   docker build -t agentfly-sandbox -f deployments/images/sandbox.Dockerfile deployments/images
# It runs without network, as user 65534, on a read-only root; whatever code may import must be in it.
FROM python:3.11.13-slim-bookworm
RUN pip install --no-cache-dir --disable-pip-version-check --no-compile \
    numpy==2.3.5 \
    sympy==1.14.0 \
 && mkdir /workspace
USER 65534:65534
WORKDIR /workspace
# Each container is asked by whoever lends it; there is no server to be asked.
HEALTHCHECK NONE
