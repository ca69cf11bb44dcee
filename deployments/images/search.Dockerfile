# The search index over HTTP. From the repository's root:
#   docker build -f deployments/images/search.Dockerfile -t agentfly/search .
#   docker run --rm -p 127.0.0.1:8000:8000 -v $PWD/data:/data:ro agentfly/search --settings '{"corpus": "/data/wiki.jsonl"}'
# BM25 only; embeddings need the packages of worker-cpu.Dockerfile or worker-gpu.Dockerfile.
FROM python:3.11.13-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 OMP_NUM_THREADS=1
WORKDIR /build
COPY requirements requirements
RUN cat requirements/cpu.lock requirements/envs.lock | grep -v '^torch' > constraints.txt \
 && pip install -c constraints.txt aiohttp bm25s numpy pydantic PyStemmer tomli-w \
 && useradd --uid 10001 --create-home agentfly
COPY agentfly_lib /srv/agentfly/agentfly_lib
WORKDIR /srv/agentfly
USER 10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "agentfly_lib.envs.search.server", "--address", "0.0.0.0", "--port", "8000"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=600s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=8)"]
