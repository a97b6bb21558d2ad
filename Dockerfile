# SPDX-License-Identifier: Apache-2.0
#
# One image per part:
#   docker build --target webhook   -t vernier-webhook .
#   docker build --target allocator -t vernier-allocator .
#   docker build --target node      -t vernier-node .
#
# `make images` reads the stages below the first from this file and packs the same
# files without a container engine. What stands there is all that an image has. For nodes
# of both architectures: docker buildx build --platform linux/amd64,linux/arm64, or
# `make images ARCHS=amd64,arm64`.

# A tag can be moved, a digest cannot. To take another:
#   docker buildx imagetools inspect golang:1.26-bookworm
FROM golang:1.26.8-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Debian 10's glibc, 2.28, is the oldest that tenants' images may have; the
# library's own tests check the versions of its symbols.
RUN make programs BIN=/out

FROM scratch AS common
LABEL org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY LICENSE /licenses/vernier/

# Static programs that need nothing of their image and write nowhere.
FROM common AS webhook
LABEL org.opencontainers.image.title="vernier-webhook" \
      org.opencontainers.image.description="Admits pods that ask for shares of GPUs"
COPY --from=build /out/vernier-webhook /
USER 65532:65532
ENTRYPOINT ["/vernier-webhook"]

FROM common AS allocator
LABEL org.opencontainers.image.title="vernier-allocator" \
      org.opencontainers.image.description="Places pods with shares on nodes and GPUs"
COPY --from=build /out/vernier-allocator /
USER 65532:65532
ENTRYPOINT ["/vernier-allocator"]

# The node agent loads the driver's NVML from the node, so it needs the loader and
# whatever of the C library a driver may ask for, libgcc_s for threads that it
# ends among it. It runs as root: it talks to containerd's NRI socket and to the
# driver.
FROM common AS node-amd64
COPY --from=build /lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 /lib64/
COPY --from=build /lib/x86_64-linux-gnu/libc.so.6 \
                  /lib/x86_64-linux-gnu/libdl.so.2 \
                  /lib/x86_64-linux-gnu/libgcc_s.so.1 \
                  /lib/x86_64-linux-gnu/libm.so.6 \
                  /lib/x86_64-linux-gnu/libpthread.so.0 \
                  /lib/x86_64-linux-gnu/librt.so.1 /lib/x86_64-linux-gnu/

FROM common AS node-arm64
COPY --from=build /lib/aarch64-linux-gnu/ld-linux-aarch64.so.1 /lib/
COPY --from=build /lib/aarch64-linux-gnu/libc.so.6 \
                  /lib/aarch64-linux-gnu/libdl.so.2 \
                  /lib/aarch64-linux-gnu/libgcc_s.so.1 \
                  /lib/aarch64-linux-gnu/libm.so.6 \
                  /lib/aarch64-linux-gnu/libpthread.so.0 \
                  /lib/aarch64-linux-gnu/librt.so.1 /lib/aarch64-linux-gnu/

FROM node-${TARGETARCH} AS node
LABEL org.opencontainers.image.title="vernier-node" \
      org.opencontainers.image.description="Gives containers their shares of a node's GPUs"
COPY --from=build /usr/share/doc/libc6/copyright /licenses/libc6/
COPY --from=build /usr/share/doc/libgcc-s1/copyright /licenses/libgcc-s1/
COPY --from=build /out/vernier-node /out/vernier-cdi-hook /out/libvgpu.so /opt/vernier/
ENTRYPOINT ["/opt/vernier/vernier-node"]
