# make demo    build bin/trapless and show it at work
# make test    format, vet, build and all tests; lists every skip with its reason
# make fuzz    every fuzz target for FUZZTIME
# make torture random changes of probes, and kills, for TORTURETIME
# make bench   what a hit costs, beside the kernel's uprobes

GO       ?= go
FUZZTIME ?= 20s
TORTURETIME ?= 10m
BIN      := bin/trapless

.PHONY: all build demo test fuzz torture bench cc clean

all: build

build:
	CGO_ENABLED=0 $(GO) build -o $(BIN) ./cmd/trapless

# A C compiler, for the programs that are probed. It is installed where that can be done.
cc:
	@sh ./internal/testkit/ci/install-cc.sh

demo: cc build
	$(BIN) demo

test: cc
	$(GO) run ./internal/testkit/ci

fuzz:
	$(GO) run ./internal/testkit/ci -fuzz $(FUZZTIME)

torture: cc build
	$(BIN) torture --for $(TORTURETIME)

bench: cc build
	$(BIN) bench

clean:
	rm -rf bin
