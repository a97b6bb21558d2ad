# SPDX-License-Identifier: Apache-2.0
#
# One image per part:
#   docker build --target webhook   -t vernier-webhook .
#   docker build --target allocator -t vernier-allocator .
#   docker build --target node      -t vernier-node .

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ENV GOFLAGS="-trimpath -buildvcs=false"
RUN CGO_ENABLED=0 go build -o /out/ ./cmd/vernier-webhook ./cmd/vernier-allocator ./cmd/kubectl-vernier
# The hook that the CDI specs name comes from NVIDIA's toolkit, at our version.
RUN CGO_ENABLED=1 CGO_CFLAGS="-O2 -Wno-deprecated-declarations" go build -o /out/ ./cmd/vernier-node \
    github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook
# Debian 10's glibc, 2.28, is the oldest that tenants' images may have; the
# library's own tests check the versions of its symbols.
RUN make -C vgpu-limiter OUT=/out

FROM gcr.io/distroless/static-debian12:nonroot AS webhook
COPY --from=build /out/vernier-webhook /
ENTRYPOINT ["/vernier-webhook"]

FROM gcr.io/distroless/static-debian12:nonroot AS allocator
COPY --from=build /out/vernier-allocator /
ENTRYPOINT ["/vernier-allocator"]

# The loader of NVML is cgo: the node image carries the C library. It runs as
# root: it talks to containerd's NRI socket and to the driver.
FROM gcr.io/distroless/base-debian12 AS node
COPY --from=build /out/vernier-node /out/nvidia-cdi-hook /out/libvgpu.so /opt/vernier/
ENTRYPOINT ["/opt/vernier/vernier-node"]
