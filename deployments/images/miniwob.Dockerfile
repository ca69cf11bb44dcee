# MiniWoB over HTTP, an episode and a Chromium for each client. From the repository's root:
#   docker build -f deployments/images/miniwob.Dockerfile -t agentfly/miniwob .
#   docker run --rm -p 127.0.0.1:8000:8000 --shm-size 1g --security-opt seccomp=unconfined \
#     --security-opt systempaths=unconfined --security-opt apparmor=unconfined agentfly/miniwob
# The browser runs behind bubblewrap, which needs user namespaces and a /proc of its own: Docker forbids both.
FROM python:3.11.13-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 OMP_NUM_THREADS=1
WORKDIR /build
COPY requirements requirements
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap chromium \
 && rm -rf /var/lib/apt/lists/* \
 && cat requirements/cpu.lock requirements/envs.lock | grep -v '^torch' > constraints.txt \
 && pip install -c constraints.txt aiohttp jinja2 lazy-loader numpy pillow pydantic regex tomli-w websockets \
 && pip install -c constraints.txt --no-deps miniwob \
 && useradd --uid 10001 --create-home agentfly
COPY agentfly_lib /srv/agentfly/agentfly_lib
WORKDIR /srv/agentfly
USER 10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "agentfly_lib.envs.host", "--http", "8000", "--address", "0.0.0.0", "--kind", "miniwob"]
# About 0.3 GB each.
CMD ["--cap", "16"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=8)"]
