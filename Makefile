# The manual: `make help` lists what there is. CI runs the same targets (`.ci/run`).

# Python of the tests that need a program which is not ours; made by tests/setup.
VENV := $(or $(CARGO_TARGET_DIR),target)/venv
export TIDEGATE_TEST_PYTHON := $(abspath $(VENV))/bin/python

# What is built and tested beyond what is shipped.
FEATURES := --features tidegate/sqlite
# A build without it refuses such lookups, which tests accept unless they are told otherwise.
export TIDEGATE_TEST_SQLITE := 1

# A cargo tool that is not part of every toolchain: run where it is there, said where it is not.
optional = if cargo $(1) --version >/dev/null 2>&1; then cargo $(2); \
	else echo "SKIPPED: cargo $(1) is not installed"; fi

.DEFAULT_GOAL := help
.PHONY: help demo setup test check bless bench soak

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: ## simulated plant, pipeline, store and broker; results as they close
	cargo run -- demo

setup: ## install what the tests need, where it is missing
	tests/setup "$(VENV)"

test: setup check ## everything that CI checks
	cargo test --workspace $(FEATURES) -- --test-threads 4

check: ## format, lints, and licences, bans and sources of dependencies
	@$(call optional,fmt,fmt --all --check)
	@$(call optional,clippy,clippy --workspace --all-targets $(FEATURES) -- -D warnings)
	@$(call optional,deny,deny check bans licenses sources)

bless: ## write generated files anew that tests compare
	TIDEGATE_BLESS=1 cargo test --workspace $(FEATURES)

bench: ## figures beside their baselines, in target/bench/results.jsonl (the build takes about 15 minutes, the run about 15)
	cargo run --profile dist -- bench $(NAMES)

# The gateway under test is what ships. What is compiled into tests is optimised where it computes: SQL and all
# else are those of `make test`, so that nothing else is built for it.
SOAKED := --config profile.dev.package.tidegate-engine.opt-level=2 --config profile.dev.package.redb.opt-level=2

# The second call has those whose figures depend on what else the machine does: one after the other.
SOAK = TIDEGATE_SOAK=1 TIDEGATE_BIN=$(abspath $(or $(CARGO_TARGET_DIR),target))/dist/tidegate \
	cargo test --workspace $(FEATURES) $(SOAKED) --test promises --

soak: setup ## the long forms of the tests that break, fill and wear the disk (a `dist` build, then some hours)
	cargo build --profile dist -p tidegate --bin tidegate
	TIDEGATE_CRASHES=$(or $(TIDEGATE_CRASHES),100000) TIDEGATE_FLIPS=$(or $(TIDEGATE_FLIPS),100000000) \
		cargo test --workspace $(FEATURES) $(SOAKED) --lib -- store::tests::crash store::tests::rot
	$(SOAK) --test-threads 4 ::f0
	$(SOAK) --test-threads 1 ::f10 ::f25 ::f26 ::a52 ::a56
