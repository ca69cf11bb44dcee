# Everything on a CPU: flows, engines, learner, the Prefect and MLflow servers. From the repository's root:
#   docker build -f deployments/images/worker-cpu.Dockerfile -t agentfly/worker-cpu:0.1.0 .
FROM python:3.11.13-slim-bookworm AS packages
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/agentfly && /opt/agentfly/bin/pip install uv==0.13.9
# The packages change seldom and the sources often: a layer for each.
RUN /opt/agentfly/bin/pip install --no-deps --index-url "$TORCH_INDEX" torch==2.13.0+cpu
COPY requirements/cpu.lock requirements/cpu.lock
RUN VIRTUAL_ENV=/opt/agentfly /opt/agentfly/bin/uv pip install --compile-bytecode --no-deps -r requirements/cpu.lock
COPY pyproject.toml README.md LICENSE ./
COPY agentfly_lib agentfly_lib
COPY flows flows
COPY tasks tasks
RUN VIRTUAL_ENV=/opt/agentfly /opt/agentfly/bin/uv pip install --no-deps .

FROM python:3.11.13-slim-bookworm
# bubblewrap: code that models write runs in its sandboxes. libgomp: torch.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap libgomp1 tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --home-dir /home/agentfly agentfly \
 && install -d -o agentfly -g agentfly /runs /artifacts /srv/agentfly \
 && ln -s /runs /srv/agentfly/runs \
 && ln -s /runs/data /srv/agentfly/data  # where recipes put runs and look for data, seen from the working folder
COPY --from=packages /opt/agentfly /opt/agentfly
WORKDIR /srv/agentfly
COPY --chown=agentfly recipes recipes
COPY --chown=agentfly flows flows
COPY --chown=agentfly prefect.yaml prefect.yaml
# Models that are made or fetched stay in the volume. Tokenizers are no secret.
# hadolint ignore=DL3064
ENV PATH=/opt/agentfly/bin:$PATH \
    OMP_NUM_THREADS=1 \
    XDG_CACHE_HOME=/runs/cache \
    TOKENIZERS_PARALLELISM=false \
    DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1 \
    PREFECT_LOGGING_EXTRA_LOGGERS=agentfly_lib
USER 10001
VOLUME /runs
# tini ends what a flow leaves behind when its own process dies.
ENTRYPOINT ["tini", "--"]
CMD ["prefect", "worker", "start", "--pool", "agentfly", "--type", "process", "--with-healthcheck"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=90s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=8)"]
