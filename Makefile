# SPDX-License-Identifier: Apache-2.0
#
# make demo   pods sharing simulated GPUs on a real Kubernetes node
# make test   everything that CI runs
# make help   the rest

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

BIN     := $(CURDIR)/bin
GOFLAGS := -trimpath -buildvcs=false
export GOFLAGS GOTOOLCHAIN := local
export VERNIER_BIN := $(BIN)

# One version of the programs, the chart and the images: deploy/chart_test.go compares them.
VERSION := $(shell sed -n 's/^appVersion: //p' deploy/chart/Chart.yaml)
STAMP   := -X vernier.dev/vernier/api/version.stamp=$(VERSION)

# All build tags.
TAGS := envtest,e2e,gpu,vendor,clients,cgroup2,upgrade,volcano,arm64test

# Architectures of the images.
ARCHS := amd64

# The node agent links NVML, and vgpu-run loads libcuda: the only ones with cgo.
PURE := vernier-webhook vernier-allocator kubectl-vernier
# go-nvml declares NVML's deprecated functions; its warnings are not ours.
CGO  := CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"
TEST := $(CGO) go test -count=1

.PHONY: help
help: ## show the targets
	@awk -F':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: go-build c-build ## build every binary and library into bin/

.PHONY: go-build
go-build: programs
	CGO_ENABLED=0 go build -ldflags='$(STAMP)' -o $(BIN)/ ./test/cluster/cmd/vernier-cluster
	$(CGO) go build -ldflags='$(STAMP)' -o $(BIN)/ ./cmd/vgpu-run

.PHONY: c-build
c-build: limiter-library
	$(MAKE) --no-print-directory -C test/simgpu OUT=$(BIN)/simgpu

# What the images are made of; the Dockerfile calls it as well. A program that ships
# carries no symbol tables, which are a third of it.
.PHONY: programs
programs: limiter-library
	@mkdir -p $(BIN)
	CGO_ENABLED=0 go build -ldflags='-s -w $(STAMP)' -o $(BIN)/ $(addprefix ./cmd/,$(PURE))
	$(CGO) go build -ldflags='-s -w $(STAMP)' -o $(BIN)/ ./cmd/vernier-node ./cmd/vernier-cdi-hook

.PHONY: limiter-library
limiter-library:
	$(MAKE) --no-print-directory -C vgpu-limiter OUT=$(BIN)

.PHONY: images
images: deps programs ## build the OCI images of all parts into bin/images/, without a container engine (ARCHS=amd64,arm64 for both)
	$(if $(findstring arm64,$(ARCHS)),$(MAKE) --no-print-directory arm64)
	go run ./deploy/images -bin $(BIN) -out $(BIN)/images -archs $(ARCHS)

# What the images have, for arm64 in bin/arm64, by Debian's cross compiler.
.PHONY: arm64
arm64: ## build the programs for arm64 into bin/arm64/ (needs root for the cross compiler)
	@test/deps.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	GOARCH=arm64 CC=aarch64-linux-gnu-gcc $(MAKE) --no-print-directory programs limiter BIN=$(BIN)/arm64

.PHONY: limiter
limiter: limiter-library ## the limiter on its own, for a workstation: bin/vgpu-run and bin/libvgpu.so
	$(CGO) go build -ldflags='$(STAMP)' -o $(BIN)/ ./cmd/vgpu-run

.PHONY: deps
deps: ## install the Debian packages that are missing (needs root)
	@test/deps.sh

.PHONY: readers
readers: # what reads the page and the tables in the tests
	@test/deps.sh chromium-headless-shell fonts-dejavu-core jq

.PHONY: tools
tools: deps ## build the cluster's own parts once: Kubernetes, etcd, containerd, runc, CNI
	@go run ./test/cluster/cmd/vernier-cluster assets >/dev/null

# What runs on a cluster in some tests.
.PHONY: guests
guests: deps
	@go run ./test/cluster/cmd/vernier-cluster assets --guests >/dev/null

.PHONY: test
test: deps lint readers tools guests build images ## all tests: lint, unit, API server, real cluster (some 16 minutes warm on 2 cores)
	@# Tests on a cluster wait more than they work: the others fill the pauses, behind them.
	@touch $(BIN)/flaky.txt; export FLAKY_BEFORE=$$(wc -l <$(BIN)/flaky.txt); \
		$(MAKE) --no-print-directory -j2 run-unit-api run-e2e && tail -n +$$((FLAKY_BEFORE + 1)) $(BIN)/flaky.txt

.PHONY: test-unit
test-unit: c-build ## tests that need neither root nor a cluster
	$(TEST) ./...

.PHONY: test-e2e
test-e2e: deps readers tools guests build images ## tests on a real cluster, with simulated GPUs (SIMGPU_PROFILE=h100-vm: that do what a real one did; needs root)
	@$(MAKE) --no-print-directory run-e2e

# Packages that start goroutines run under the race detector, which makes tests several times
# as long. What it makes too long or too large runs without it: files with the constraint !race,
# and LONG, in which one goroutine does it all. What the limiter's tests test is C, which they run
# under C's own sanitizers. The linter has vetted all of them.
LONG     := Soak$$|SoakReplays|SoakFinds|HostileMemory|HostileFlood|HostileCosts|HostileConditions|HostileRounds|HostileKinds|Contested|TriesAreBounded|WaitingPodsDontStarve|GangRunsAgain|Karpenter$$
PACKAGES := go list -tags envtest ./... | sort
RACED    := git grep -lE '^\s*go [a-z]|\.Go\(|synctest\.|RunParallel' '*.go' ':!vgpu-limiter/tests' | xargs -n1 dirname | sed 's,^,vernier.dev/vernier/,' | sort -u
API      := KUBEBUILDER_ASSETS="$$(go run ./test/cluster/cmd/vernier-cluster assets)" nice -n 10 env $(CGO)
UNIT     := -count=1 -vet=off -tags envtest -p 2 -parallel 4

# What is to be built for them is built.
.PHONY: run-unit-api run-e2e
run-unit-api:
	$(API) test/flaky/gotest "$$(comm -23 <($(PACKAGES)) <($(RACED)))" $(UNIT) -timeout 25m
	$(API) test/flaky/gotest "$$(comm -12 <($(PACKAGES)) <($(RACED)))" $(UNIT) -timeout 25m -race -skip '$(LONG)'
	$(API) go test $(UNIT) -run 'SoakOnAPIServer|$(LONG)' ./allocator ./webhook ./webhook/handler
run-e2e:
	$(CGO) test/flaky/gotest './deploy/images/... ./test/cluster/... ./test/demo ./test/e2e/... ./test/gpu/cluster' -count=1 -vet=off -tags e2e -p 1 -parallel 8 -timeout 40m

.PHONY: test-race
test-race: deps readers tools build ## all tests that need no cluster, under the race detector
	$(API) go test $(UNIT) -timeout 40m -race ./...

.PHONY: test-hostile
test-hostile: deps tools build images ## what tenants and stolen tokens are refused: docs/security.md lists it (needs root)
	KUBEBUILDER_ASSETS="$$(go run ./test/cluster/cmd/vernier-cluster assets)" $(TEST) -p 2 -timeout 25m -tags envtest -run 'Hostile|Soak$$|TestPolicy' $$(go list -tags envtest ./... | grep -v /test/)
	$(TEST) -tags e2e -timeout 25m -run Hostile ./test/e2e

# One folder for a machine with a GPU that has nothing but NVIDIA's driver.
KIT := $(BIN)/gpu-kit
.PHONY: gpu-kit
gpu-kit: limiter-library ## pack bin/gpu-kit: copied to a machine with a GPU, ./gpu-kit checks what Vernier promises
	rm -rf $(KIT)
	mkdir -p $(KIT)/python
	cp $(BIN)/libvgpu.so LICENSE test/gpu/kit/program/kernels.ptx test/gpu/kit/program/runtime.cu $(KIT)/
	cp test/gpu/kit/python/*.py $(KIT)/python/
	CGO_ENABLED=0 go build -ldflags='-s -w' -o $(KIT)/gpu-kit ./test/gpu/kit
	$(CGO) go build -ldflags='-s -w' -o $(KIT)/ ./cmd/vgpu-run
	$(CGO) go test -c -tags gpu -ldflags='-s -w' -o $(KIT)/gpu-checks ./test/gpu
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Itest/simgpu/include -o $(KIT)/kit-program test/gpu/kit/program/*.c -ldl
	$(KIT)/gpu-kit --wrap $(KIT)/kernels.ptx $(KIT)/kernels.fatbin
	@test $$(du -sm $(KIT) | cut -f1) -le 48 || { du -a $(KIT); echo "the kit is larger than 48 MiB"; exit 1; }

# The same for a whole cluster: a small program, and parts of at most 40 MiB that it unpacks.
# FAST=1 compresses little, for tests.
CLUSTER := $(BIN)/gpu-cluster
.PHONY: gpu-cluster
gpu-cluster: deps tools programs gpu-kit ## pack bin/gpu-cluster: Kubernetes and Vernier for a machine with a GPU and NVIDIA's driver, and checks of shares on it
	rm -rf $(CLUSTER)
	$(MAKE) --no-print-directory -C test/simgpu OUT=$(BIN)/simgpu
	mkdir -p $(CLUSTER)/tree/bin $(CLUSTER)/tree/sbin $(CLUSTER)/tree/tools $(CLUSTER)/tree/deploy
	cp -r deploy/manifests $(CLUSTER)/tree/deploy/
	cp -r $(BIN)/simgpu $(BIN)/gpu-kit $(addprefix $(BIN)/,$(PURE) vernier-node vernier-cdi-hook libvgpu.so) $(CLUSTER)/tree/bin/
	cp test/gpu/cluster/pod-run $(CLUSTER)/tree/bin/gpu-kit/
	rm $(addprefix $(CLUSTER)/tree/bin/gpu-kit/,gpu-checks vgpu-run)
	$(CGO) go test -c -tags e2e -ldflags='-s -w' -o $(CLUSTER)/tree/bin/ ./test/e2e
	go run ./test/cluster/cmd/vernier-cluster tools $(CLUSTER)/tree/tools
	cp "$$(command -v busybox)" $(CLUSTER)/tree/sbin/
	for tool in env mount nsenter umount; do ln -s busybox $(CLUSTER)/tree/sbin/$$tool; done
	CGO_ENABLED=0 go build -ldflags='-s -w' -o $(CLUSTER)/ ./test/gpu/cluster
	mv $(CLUSTER)/cluster $(CLUSTER)/gpu-cluster
	$(CLUSTER)/gpu-cluster pack $(if $(FAST),--fast) $(CLUSTER)/tree $(CLUSTER)
	rm -r $(CLUSTER)/tree

.PHONY: test-gpu
test-gpu: gpu-kit ## checks on a machine with a real NVIDIA GPU: the kit, and those that need Go; changes nothing on the card
	kit=0; $(KIT)/gpu-kit --report $(BIN)/gpu-kit.json || kit=$$?; $(TEST) -v -tags gpu ./test/gpu && exit $$kit

.PHONY: test-vendor
test-vendor: build ## NVIDIA's own programs beside ours: unpacks Debian's non-free packages into the cache
	$(TEST) -v -tags vendor ./test/nvidia

.PHONY: test-clients
test-clients: build ## Debian's CUDA and NVML programs on the simulated GPU, native beside limited, as a table: unpacks them into the cache (500 MB)
	$(TEST) -v -tags clients ./test/clients

.PHONY: test-cgroup2
test-cgroup2: deps build ## on a machine with nothing but cgroup v2: Debian's kernel in QEMU, unpacked into the cache
	$(TEST) -v -tags cgroup2 ./test/cgroup2

.PHONY: test-arm64
test-arm64: deps ## the limiter and its layout for arm64: Debian's cross compiler and QEMU (needs root)
	@test/deps.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	$(TEST) -v -timeout 40m -tags arm64test ./test/arm64

# The release before, that `make test-upgrade` comes from and goes back to: the last commit
# before the counters' present layout. Change it to a release's commit once that is made.
UPGRADE_FROM ?= ad006fc6f9b979ed60962c9968347e219d713cdb
.PHONY: test-upgrade
test-upgrade: deps tools build images ## from the release before to this one and back, under running pods: nothing stops, nothing is lost (needs root)
	before=$$(test/e2e/upgrade/before $(UPGRADE_FROM) $(BIN)/upgrade) && \
		VERNIER_RELEASE_BEFORE=$$before $(TEST) -tags upgrade -timeout 25m ./test/e2e/upgrade

.PHONY: test-volcano
test-volcano: deps tools build images ## a real Volcano beside Vernier: its Jobs, plugins and queues (builds Volcano once; needs root)
	$(TEST) -v -tags volcano -timeout 60m ./test/e2e/volcano

# The oldest that the README names, and the newest of which Go modules are served. What is
# not named here is as everywhere: test/cluster/tools.
OLDEST := VERNIER_KUBERNETES_VERSION=v1.34.0 VERNIER_CONTAINERD_VERSION=v2.2.0
NEWEST := VERNIER_KUBERNETES_VERSION=v1.37.2
CORE   := TestShareOfOneGPU|TestAllocatingPastTheSliceFails|TestNoSliceNoGPU$$|TestExclusive$$|TestStrongestGuarantee|TestGangStartsWhole|TestAgentAway|TestRuntimeRestarts|TestForgedAnnotationsAreRefused|TestDemo
.PHONY: test-versions
test-versions: deps build ## the core of the tests on a real cluster, on the oldest supported and the newest Kubernetes and containerd (needs root)
	@for versions in "$(OLDEST)" "$(NEWEST)"; do ( \
		echo "$$versions"; export $$versions; $(BIN)/vernier-cluster assets >/dev/null; \
		$(TEST) -v -tags e2e -p 1 -timeout 25m -run '$(CORE)' ./test/demo ./test/e2e \
	); done

.PHONY: bench
bench: deps tools build ## benchmarks, each beside its comparison (a container's start needs root)
	$(CGO) go test -run '^$$' -bench . ./webhook/handler ./nri-plugin/hooks
	$(CGO) go test -run '^$$' -bench . -benchtime 20000x ./allocator/placement/packer
	$(MAKE) --no-print-directory -C vgpu-limiter bench OUT=$(BIN)
	$(MAKE) --no-print-directory bench-e2e

.PHONY: bench-e2e
bench-e2e: deps tools build ## a container's start with Vernier and without, on a real cluster (needs root)
	$(CGO) go build -o $(BIN)/ $(addprefix github.com/NVIDIA/nvidia-container-toolkit/cmd/,nvidia-ctk nvidia-cdi-hook)
	$(CGO) go test -tags e2e -run '^$$' -bench 'Start$$' -benchtime 400x -timeout 20m ./test/bench/start
	$(CGO) go test -tags e2e -run '^$$' -bench Modes -benchtime 150x -timeout 20m ./test/bench/start

.PHONY: bench-preempt
bench-preempt: deps tools build ## a pod's start for which others are evicted, beside the same on a free GPU (needs root)
	$(CGO) go test -tags e2e -run '^$$' -bench Preemption -benchtime 100x -timeout 30m ./test/bench/preempt

.PHONY: bench-kueue
bench-kueue: deps tools guests build ## a small job's wait behind 200 in a queue of Kueue's, for each of which there is no GPU (needs root)
	$(CGO) go test -tags e2e -run 'TestFragmented$$' -v -timeout 30m ./test/e2e/kueue -args -many=200

.PHONY: bench-page
bench-page: readers ## a reader's wait for the page in a browser, with 8 GPUs and with 5,000
	$(CGO) go test -tags e2e -run '^$$' -bench . -benchtime 10x ./test/e2e/browser

.PHONY: bench-throughput
bench-throughput: deps tools build ## pods a second on 1,000 nodes, with Vernier and without; fail-over; ledger writes (needs root)
	$(CGO) go test -tags e2e -run '^$$' -bench . -benchtime 3x -timeout 30m ./test/bench/throughput
	KUBEBUILDER_ASSETS="$$(go run ./test/cluster/cmd/vernier-cluster assets)" \
		$(CGO) go test -tags envtest -run '^$$' -bench LedgerWrites -benchtime 10x ./allocator

.PHONY: bench-colocate
bench-colocate: deps ## what sharing brings on a day of pods, by steps: TRACES=folder with pods.csv.gz; draws docs/pictures/colocation.svg
	$(CGO) go run ./test/bench/colocate -traces "$(TRACES)" -picture docs/pictures/colocation.svg

.PHONY: demo
demo: ## see it work: no GPU and no cluster needed (KEEP=1 leaves it up, GPU=real takes this machine's GPUs, KUEUE=1 installs Kueue, and so do JOBSET=1, LWS=1, TRAINER=1 and KUBERAY=1, SET="allocator.reserveAfter=20s" sets values of the chart; needs root)
	@test/demo/run.sh

.PHONY: generate
generate: ## CRD and deepcopy from api/, plain manifests from the chart, the tables of docs/reference, the pictures
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd paths=./api/... output:crd:dir=deploy/chart/files/crds
	deploy/render.sh deploy/manifests
	CGO_ENABLED=0 go run ./docs/reference/gen docs/troubleshooting.md docs/reference/*.md
	docs/pictures/render docs/pictures

# The folders whose comments and messages follow the rules in test/words/styles. Vale's parsers
# of programming languages, which are C, are not used: they are compiled without optimization.
WORDS := allocator api cmd deploy nri-plugin vgpu-limiter webhook
VALE  := CGO_CFLAGS="-O0 -w" CGO_CXXFLAGS="-O0 -w" go tool -n -modfile=test/words/tool/go.mod vale

.PHONY: words
words: ## the words of hand-written pages beside their budgets, and their prose
	@VALE=$$($(VALE)) go run ./test/words pages

.PHONY: lint
lint: deps ## gofmt, go.mod, go vet, staticcheck, shellcheck, the words of comments, messages and pages, generated code current
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run: gofmt -w on the files above"; exit 1; }
	@go mod tidy -diff || { echo "run: go mod tidy"; exit 1; }
	$(CGO) go vet -tags $(TAGS) ./...
	$(CGO) go tool staticcheck -tags $(TAGS) ./...
	shellcheck $$(git ls-files '*.sh') .ci/run deploy/tools/helm deploy/tools/prometheus test/nvidia/unpack test/clients/unpack test/cgroup2/unpack test/arm64/unpack test/e2e/upgrade/before test/flaky/gotest test/gpu/cluster/pod-run docs/pictures/render
	@deploy/tools/helm lint --strict --quiet --namespace vernier-system deploy/chart
	@VALE=$$($(VALE)) go run ./test/words $(WORDS)
	@pages=$$(VALE=$$($(VALE)) go run ./test/words pages) || { echo "$$pages"; exit 1; }
	@test/generated.sh

.PHONY: clean
clean: ## remove bin/
	rm -rf $(BIN)
