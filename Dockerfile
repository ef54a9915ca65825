# syntax=docker/dockerfile:1
# The first stage builds the package, the second one installs it.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Compilers, as host/setup.sh and plugins/build.sh would install them.
RUN apt-get update \
 && apt-get install -y --no-install-recommends clang-19 libclang-19-dev cmake g++ python3 xz-utils binutils \
 && rustup component add rustfmt clippy \
 && rustup target add wasm32-wasip1 wasm32-wasip2
ENV CORRAL_CACHE=/cache
RUN make dist PACKAGES=/packages

FROM debian:bookworm-slim
RUN --mount=type=bind,from=build,source=/packages,target=/packages \
    apt-get update \
 && apt-get install -y --no-install-recommends /packages/corral_*.deb ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 999 --home-dir /var/lib/corral corral \
 && install -d -o corral -g corral -m 0700 /var/lib/corral /var/cache/corral /run/corral
# Models of a hub lie in /var/cache/corral/models.
ENV XDG_CACHE_HOME=/var/cache
USER 999:999
VOLUME ["/var/lib/corral", "/var/cache/corral"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --start-period=15m CMD ["corral", "list", "--admin", "unix:/run/corral/admin.sock"]
ENTRYPOINT ["corral"]
CMD ["serve", "--listen", "0.0.0.0:8080", "--admin", "unix:/run/corral/admin.sock", \
     "--store", "/var/lib/corral", "--cache-dir", "/var/cache/corral/plugins", \
     "--model", "/usr/share/corral/models/tiny.gguf", \
     "--plugin", "/=/usr/share/corral/plugins/openai.wasm", "--error-format", "/=openai", \
     "--plugin", "/api=/usr/share/corral/plugins/ollama.wasm", "--error-format", "/api=ollama"]
