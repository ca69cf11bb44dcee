# TextWorld over HTTP, an episode for each client. From the repository's root:
#   docker build -f deployments/images/textworld.Dockerfile -t agentfly/textworld .
#   docker run --rm -p 127.0.0.1:8000:8000 agentfly/textworld
FROM python:3.11.13-slim-bookworm AS wheels
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /build
# Two packages come as sources: an interpreter of games, and a planner.
RUN apt-get update && apt-get install -y --no-install-recommends build-essential cmake && rm -rf /var/lib/apt/lists/*
COPY requirements requirements
RUN grep -E '^(alfworld|fast-downward-textworld|hashids|jericho|mementos|more-itertools|prompt-toolkit|tatsu|termcolor|textworld)==' \
    requirements/envs.lock > games.txt \
 && grep -E '^(networkx|tqdm|wcwidth|pyyaml)==' requirements/cpu.lock >> games.txt \
 && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels -r games.txt

FROM python:3.11.13-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 OMP_NUM_THREADS=1
WORKDIR /build
COPY requirements requirements
RUN --mount=from=wheels,source=/wheels,target=/wheels \
    cat requirements/cpu.lock requirements/envs.lock | grep -v '^torch' > constraints.txt \
 && pip install -c constraints.txt aiohttp numpy psutil pydantic setuptools tomli-w \
 && pip install --no-deps /wheels/*.whl \
 && useradd --uid 10001 --create-home agentfly
COPY agentfly_lib /srv/agentfly/agentfly_lib
WORKDIR /srv/agentfly
USER 10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "agentfly_lib.envs.host", "--http", "8000", "--address", "0.0.0.0", "--kind", "textworld"]
CMD ["--cap", "64"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=8)"]
