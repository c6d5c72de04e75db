# Builds mvsync from this tree. The parser of bodies is C, so the build wants a C compiler, and the image a glibc.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=1 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /mvsync ./cmd/mvsync

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 9632 --no-create-home --shell /usr/sbin/nologin mvsync
COPY --from=build /mvsync /usr/local/bin/mvsync
USER mvsync
ENV MVSYNC_CONFIG=/etc/mvsync/mvsync.yaml
EXPOSE 9632
# The daemon finishes its round on SIGTERM.
STOPSIGNAL SIGTERM
ENTRYPOINT ["mvsync"]
CMD ["run"]
