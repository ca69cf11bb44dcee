# SWE-style tasks over HTTP, an episode for each client. From the repository's root:
#   docker build -f deployments/images/swe.Dockerfile -t agentfly/swe .
#   docker run --rm -p 127.0.0.1:8000:8000 -v PATH/OF/TASKS:/data:ro --security-opt seccomp=unconfined \
#     --security-opt systempaths=unconfined --security-opt apparmor=unconfined agentfly/swe
# The agent's shell runs behind bubblewrap, which needs user namespaces and a /proc of its own: Docker forbids both.
# Problems with an image of their own need a Docker engine beside the driver instead, and not this image.
FROM python:3.11.13-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 OMP_NUM_THREADS=1
WORKDIR /build
COPY requirements requirements
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap git \
 && rm -rf /var/lib/apt/lists/* \
 && cat requirements/cpu.lock requirements/envs.lock | grep -v '^torch' > constraints.txt \
 && pip install -c constraints.txt aiohttp numpy pyarrow pydantic tomli-w \
 && useradd --uid 10001 --create-home agentfly
COPY agentfly_lib /srv/agentfly/agentfly_lib
WORKDIR /srv/agentfly
USER 10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "agentfly_lib.envs.host", "--http", "8000", "--address", "0.0.0.0", "--kind", "swe"]
CMD ["--cap", "64"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=8)"]
