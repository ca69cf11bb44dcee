# Flows, engines and learner on NVIDIA GPUs. From the repository's root:
#   docker build -f deployments/images/worker-gpu.Dockerfile -t agentfly/worker-gpu:0.1.0 .
# Run it with --gpus all --shm-size 16g: weights go from the learner to the engines through shared memory.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3.12 python3.12-venv python3.12-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
RUN python3.12 -m venv /opt/agentfly && /opt/agentfly/bin/pip install uv==0.13.9
COPY pyproject.toml README.md LICENSE ./
COPY agentfly_lib agentfly_lib
COPY flows flows
COPY tasks tasks
RUN VIRTUAL_ENV=/opt/agentfly /opt/agentfly/bin/uv pip install --compile-bytecode ".[gpu,postgres]"

FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
ENV DEBIAN_FRONTEND=noninteractive
# The compiler stays, of the CUDA that torch was made for: kernels are built for the card that is found.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap python3.12 python3.12-dev tini \
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
ENTRYPOINT ["tini", "--"]
CMD ["prefect", "worker", "start", "--pool", "agentfly", "--type", "process", "--with-healthcheck"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=8)"]
