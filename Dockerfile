# An image that can stand where that of text-generation-inference stood: make dist && docker build -t weft .
# Whatever a step does is a script of deploy/docker, which the tests run.
FROM python:3.12-slim

# Options for pip, such as the index with PyTorch for CPU only.
ARG PIP_ARGS=""
COPY deploy/docker/ /opt/weft/
COPY constraints.txt dist/weft-*.whl /tmp/weft/
RUN /opt/weft/compiler.sh /var/lib/apt/lists
RUN PIP_ARGS="$PIP_ARGS" /opt/weft/install.sh /tmp/weft
RUN /opt/weft/prepare.sh /data 1000:1000

ENV PORT=80 HF_HOME=/data HOME=/data XDG_CACHE_HOME=/data/.cache
USER 1000:1000
EXPOSE 80
# Download and load may take as long as the first of these says.
HEALTHCHECK --start-period=60m --interval=10s --timeout=5s --retries=3 CMD ["/opt/weft/healthcheck.sh"]
ENTRYPOINT ["/opt/weft/entrypoint.sh"]
