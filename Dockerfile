# tailrace's server on a CPU: docker build -t tailrace . && docker run -p 8000:8000 -v tailrace:/cache tailrace
# `docker stop` kills after 10 seconds, so the server drains for 3. For longer answers, allow both:
# docker run --stop-timeout 40 -e TAILRACE_SERVER_DRAIN_TIMEOUT_S=30 …
# The wheel is built in one image and installed in another, which holds no compiler.

FROM python:3.11-slim-bookworm AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY csrc csrc
COPY src src
COPY packages packages
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . ./packages/conform

FROM python:3.11-slim-bookworm
# torch's own package index has builds without CUDA, of a twentieth of the size: --build-arg PIP_EXTRA_INDEX_URL=… names it
ARG PIP_EXTRA_INDEX_URL=
COPY requirements.lock /tmp/requirements.lock
COPY --from=wheel /wheels /tmp/wheels
# in the versions that the tests have passed with
RUN pip install --no-cache-dir --constraint /tmp/requirements.lock "$(ls /tmp/wheels/tailrace-*.whl)[serve]" \
    /tmp/wheels/tailrace_conform-*.whl \
    && rm -r /tmp/wheels /tmp/requirements.lock
RUN useradd --create-home tailrace && mkdir /cache && chown tailrace /cache
USER tailrace
# converted models, and what the hub downloads
ENV TAILRACE_MODEL_CACHE_DIR=/cache HF_HOME=/cache/huggingface TAILRACE_SERVER_DRAIN_TIMEOUT_S=3
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=120s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["tailrace"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
