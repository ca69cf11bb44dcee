# The shop over HTTP, an episode for each client. From the repository's root:
#   docker build -f deployments/images/webshop.Dockerfile -t agentfly/webshop .
#   docker run --rm -p 127.0.0.1:8000:8000 agentfly/webshop
# The original catalogue: mount its folder at /data, and give --settings (docs/environments/webshop.md).
FROM python:3.11.13-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 OMP_NUM_THREADS=1
WORKDIR /build
COPY requirements requirements
RUN cat requirements/cpu.lock requirements/envs.lock | grep -v '^torch' > constraints.txt \
 && pip install -c constraints.txt aiohttp bm25s numpy pydantic PyStemmer rapidfuzz tomli-w \
 && useradd --uid 10001 --create-home agentfly
COPY agentfly_lib /srv/agentfly/agentfly_lib
WORKDIR /srv/agentfly
USER 10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "agentfly_lib.envs.host", "--http", "8000", "--address", "0.0.0.0", "--kind", "webshop"]
CMD ["--cap", "64"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=8)"]
