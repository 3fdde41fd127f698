# Everything one does with a checkout. Each target first brings its own set-up to date; `make help` lists them.
#
#   make run PORT=8080 ARGS="--num-shard 2"     flags of `weft serve`
#   make run PIP_ARGS="--extra-index-url URL"   options for pip, when the set-up installs
#   make run PYTHON=/path/to/python3            the Python that the set-up uses

.ONESHELL:
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help
.PHONY: help run free-port test test-long test-clients test-proxies chaos soak fuzz gpu-wheels gpu-check gpu-memcheck gpu-bench check manifests-check proto proto-check page page-check test-page test-ray docs docs-site bench study dist stats clean

PYTHON :=
PIP_ARGS :=
PORT :=
ARGS :=
DIST := dist
SEED := $(shell date +%s)

# -P: nothing in the current folder but what is installed from here can shadow a module.
VENV := .venv/bin/python -P
PYTEST := $(VENV) -m pytest
PROTOC := .venv-proto/bin/python -m grpc_tools.protoc -I shard/pb=proto shard/pb/shard.proto
GRPCIO_TOOLS := 1.73.1
KUBERNETES_VALIDATE := 1.37.0
DOCS_TOOLS := mkdocs-material==9.8.2 codespell==2.4.3
CPU_TORCH_INDEX := https://download.pytorch.org/whl/cpu

# Shell functions for the set-up. Of the Pythons at hand, the first that is new enough and can make environments.
define SETUP
find_python() {
	new= old=
	for python in $(if $(PYTHON),"$(PYTHON)",$$1); do
		"$$python" -c '' 2>/dev/null || continue
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { old=$$python; continue; }
		new=$$python
		if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then return; fi
	done
	if [ "$$new" ]; then
		package=$$("$$new" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
		echo "weft: $$new has no venv module; install it (Debian, Ubuntu: apt install $$package) and call make again"
	elif [ "$$old" ]; then
		echo "weft: needs Python 3.11 or newer, found only $$("$$old" --version 2>&1); install a newer one, or name it: make PYTHON=/path/to/python3"
	else
		echo "weft: needs Python 3.11 or newer, found none; install it (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3"
	fi >&2
	exit 1
}
make_venv() {  # a venv that an interrupted set-up left half made is made anew, one that works is kept
	"$$1/bin/python" -m pip --version >/dev/null 2>&1 && return
	find_python "$$2"
	rm -rf "$$1"
	"$$python" -m venv "$$1"
}
forget_half_installed() {  # pip writes INSTALLER last; it would take what has none for installed
	for package in "$$1"/lib/python*/site-packages/*.dist-info; do
		test -e "$$package/INSTALLER" || rm -rf "$$package"
	done
}
endef

help:
	@cat <<'TEXT'
	make run           serve a model on http://127.0.0.1:3000 (PORT=..., ARGS="flags of weft serve")
	make test          all tests but the long ones
	make test-long     thousands of random schedules and requests, new ones every time (SEED=... repeats)
	make test-clients  tests with official clients, each installed in an environment of its own
	make test-proxies  replicas behind nginx, HAProxy and Caddy (apt-get installs them if it may), Envoy and vLLM's router
	make chaos         ten minutes of mixed load with a fault every five seconds (SEED=... repeats; ARGS="--seconds 60")
	make soak          hours of moderate load with rare faults, and how memory grows (ARGS="--hours 8")
	make fuzz          fuzzers on all routes, and on what reads foreign bytes (FUZZ_SECONDS=60 for each)
	make gpu-check     tests on a GPU, without network: torch, transformers and gpu-wheels will do
	make gpu-memcheck  the kernels' tests on a GPU under NVIDIA's compute-sanitizer
	make gpu-bench     how near a GPU's rate: ARGS="decode", prompts, served or beside, and flags of benchmarks.gpu
	make gpu-wheels    download what weft needs beside those two on Python 3.12, 25 MB
	make check         style, types, and whether generated files are fresh
	make manifests-check  deploy/kubernetes against the schemas of its resources; a part of check
	make proto         write shard/pb from proto/shard.proto
	make proto-check   whether shard/pb is what make proto would write
	make page          build the page for browsers, router/http/page/static; needs Node.js
	make page-check    types of its sources, and whether it is what make page would build
	make test-page     its tests, in Chromium; needs Node.js
	make test-ray      replicas on a real Ray cluster, installed in an environment of its own; about ten minutes
	make docs          write settings.md, migration-flags.md, http-fields.md and the tables of metrics.md in docs/reference
	make docs-site     build the documentation as a site in .site/html; checks links and spelling
	make bench         what the router costs per token (ARGS="flags of benchmarks.experiments.router_cost")
	make study         policies of batching side by side (ARGS="flags of benchmarks.study batching")
	make dist          build a wheel, with the model that comes with weft, in dist/
	make stats         sizes of files and functions, and how many a request passes through
	make clean         remove what make has made here
	run installs what serving needs, test and check what development needs; PIP_ARGS=... passes options to pip, PYTHON=... names a Python
	TEXT

# Shell code that installs $(1) into .venv. Without options for pip and without an NVIDIA GPU, torch is its build for CPUs,
# if the index of those answers. What pip says goes to a log; of it, downloads of some size are shown.
define INSTALL
@$(SETUP)
make_venv .venv "python3.14 python3.13 python3.12 python3.11 python3"
forget_half_installed .venv
build="the build that pip chooses, since $(CPU_TORCH_INDEX) does not answer" index=
if [ -n "$(strip $(PIP_ARGS))" ]; then build="the build that PIP_ARGS selects"
elif [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then build="with CUDA, about 3 GB, for the GPU of this machine"
elif .venv/bin/python -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=3)' $(CPU_TORCH_INDEX)/torch/ 2>/dev/null
then build="for CPUs, 0.2 GB, since this machine has no NVIDIA GPU" index="--extra-index-url $(CPU_TORCH_INDEX)"
fi
echo "weft: installing $(2) into .venv ($$(.venv/bin/python --version)); torch: $$build"
echo "weft: what pip says is in .venv/pip.log; PIP_ARGS=\"...\" passes options to it"
rm -f .venv/pip-failed
{ .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off $(PIP_ARGS) $$index -c constraints.txt -e '$(1)' 2>&1 ||
	touch .venv/pip-failed; } | tee .venv/pip.log | while IFS= read -r line; do
	case $$line in
		*Downloading*[0-9][0-9].[0-9]' MB)'*|*Downloading*' GB)'*) name=$${line##*/}; echo "weft: downloading $${name##*Downloading }";;
		Installing*) echo "weft: unpacking";;
	esac
done
if [ -e .venv/pip-failed ]; then
	tail -n 20 .venv/pip.log >&2
	echo "weft: the set-up is not complete; call make again to go on with it" >&2
	exit 1
fi
endef

.venv/serving: pyproject.toml constraints.txt
	$(call INSTALL,.,what serving needs)
	touch .venv/serving

.venv/ready: pyproject.toml constraints.txt
	$(call INSTALL,.[dev],what serving and development need)
	touch .venv/serving .venv/ready

# A venv of its own: grpcio-tools wants an older protobuf than the one we run with.
.venv-proto/ready: Makefile
	@$(SETUP)
	make_venv .venv-proto "python3.13 python3.12 python3.11 python3"
	forget_half_installed .venv-proto
	.venv-proto/bin/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) grpcio-tools==$(GRPCIO_TOOLS)
	touch .venv-proto/ready

# One with the schemas of Kubernetes, 110 MB.
.venv-manifests/ready: Makefile
	@$(SETUP)
	make_venv .venv-manifests "python3.13 python3.12 python3.11 python3"
	forget_half_installed .venv-manifests
	.venv-manifests/bin/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) kubernetes-validate==$(KUBERNETES_VALIDATE)
	touch .venv-manifests/ready

# And one for the site of the docs, which nothing else needs.
.venv-docs/ready: Makefile
	@$(SETUP)
	make_venv .venv-docs "python3.13 python3.12 python3.11 python3"
	forget_half_installed .venv-docs
	.venv-docs/bin/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) $(DOCS_TOOLS)
	touch .venv-docs/ready

# Asked before minutes of installing instead of after them. A port in ARGS is left to weft.
free-port:
ifeq ($(filter -p --port --port=%,$(ARGS)),)
	@port=$(or $(PORT),3000)
	if [ ! -e .venv/serving ] && $(if $(PYTHON),"$(PYTHON)",python3) -c 'import socket, sys
	sys.exit(socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))))' "$$port" 2>/dev/null; then
		echo "weft: port $$port is taken; choose another: make run PORT=$$((port + 1))" >&2
		exit 1
	fi
endif

run: free-port .venv/serving
	@exec .venv/bin/weft serve $(if $(PORT),--port $(PORT)) $(ARGS)

# In three parts at once. What the servers' tests say comes as they say it, the others' when all are over, and then once more
# what failed among the servers', so that what failed is always at the end. With ARGS, such as a file, in one.
test: .venv/ready
ifdef ARGS
	@$(PYTEST) $(ARGS)
else
	@said=$$(mktemp -d)
	trap 'kill $$parts; rm -rf $$said; exit 130' INT TERM
	# The parts share the cores: threads of torch that wait for one another's core take four times as long. Servers come
	# first: their tests give them some seconds. The others take as long as they take, and while servers are busy on a
	# machine that is slow they get next to nothing: a test of four seconds may take two minutes. Launchers come behind the
	# servers, benchmarks behind the shard, and its tests of attention go with the rest, so that the parts end at nearly
	# the same time.
	export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
	export PYTHONDONTWRITEBYTECODE=  # two hundred processes would compile what one has compiled
	parts=
	programs='--ignore=tests/e2e --ignore=tests/launcher --ignore=tests/benchmarks'
	for part in 'shard tests/shard --ignore-glob=*/shard/at* tests/benchmarks' \
		"rest --ignore-glob=*/shard/[!a]* --ignore-glob=*/shard/a[!t]* $$programs"; do
		set -- $$part; name=$$1; shift
		nice -n 10 $(PYTEST) -o timeout=600 "$$@" > $$said/$$name 2>&1 & parts="$$parts $$!"
	done
	{ $(PYTEST) tests/e2e tests/launcher || touch $$said/failed; } | tee $$said/programs
	for part in $$parts; do wait $$part || touch $$said/failed; done
	cat $$said/shard $$said/rest
	shown=; while IFS= read -r line; do
		case $$line in ==*' ERRORS ='*|==*' FAILURES ='*|++*' Timeout +'*) shown=yes;; esac
		test ! "$$shown" || printf '%s\n' "$$line"
	done < $$said/programs
	code=0; test ! -e $$said/failed || code=1
	rm -rf $$said
	exit $$code
endif

test-long: .venv/ready
	@echo "weft: make test-long SEED=$(SEED) runs the same again"
	WEFT_SEED=$(SEED) $(PYTEST) -m long --hypothesis-seed=$(SEED) $(ARGS)

test-clients: .venv/ready
	@$(PYTEST) -m clients $(ARGS)

# Debian's and Ubuntu's packages, where they can be installed without a question; what is not there is skipped.
test-proxies: .venv/ready
	@for program in nginx haproxy caddy; do
		PATH="$$PATH:/usr/sbin" command -v $$program >/dev/null || missing="$${missing-} $$program"
	done
	if [ "$${missing-}" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing
	fi
	PATH="$$PATH:/usr/sbin" $(PYTEST) -m proxies $(ARGS)
test-ray: .venv/ready
	@$(PYTEST) -m ray $(or $(ARGS),tests/ray)

# Real processes, which a run kills and stops, with folders of their own. The report says what was wrong.
chaos soak: .venv/ready
	@export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive GRPC_VERBOSITY=none PYTHONPATH=tests
	$(VENV) -m support.chaos $@ --seed $(SEED) $(ARGS)

# Fuzzers are installed in environments of their own, as clients are.
FUZZ_SECONDS := 60
fuzz: .venv/ready
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) -m fuzz -o timeout=$$((300 + 2 * $(FUZZ_SECONDS))) $(or $(ARGS),tests/test_fuzz.py tests/e2e/api/test_document.py)

# What weft and its tests need beside torch, transformers and what those need; tests/test_make.py keeps the list whole.
GPU_PACKAGES := aiohappyeyeballs aiohttp aiosignal annotated-types attrs cyclopts docstring-parser frozenlist grpcio \
	grpcio-health-checking hypothesis idna iniconfig llguidance markdown-it-py mdurl multidict packaging pluggy \
	propcache protobuf pydantic pydantic-core pygments pytest pytest-timeout rich rich-rst sortedcontainers \
	typing-extensions typing-inspection uvloop yarl
# pip takes a wheel only for a platform that is named exactly.
GPU_PLATFORMS := $(foreach tag,_2_34 _2_31 _2_28 _2_27 _2_26 _2_24 _2_17 _2_12 _2_5 2014 2010 1,--platform manylinux$(tag)_x86_64)

gpu-wheels: .venv/ready
	@rm -rf .gpu-wheels
	$(VENV) -m pip download --disable-pip-version-check -q $(PIP_ARGS) --no-deps --only-binary=:all: \
		--python-version 3.12 --implementation cp $(GPU_PLATFORMS) -c constraints.txt -d .gpu-wheels $(GPU_PACKAGES)
	du -sh .gpu-wheels

# A folder on the path and no venv: one that is made from a venv, as python3 may well be, does not see what that has.
define GPU_SITE
python=$(if $(PYTHON),"$(PYTHON)",python3)
fail() { echo "weft: $$*" >&2; exit 1; }
"$$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
	fail "$$python has no torch that sees a GPU; name one that has: make $@ PYTHON=/path/to/python3"
test -d .gpu-wheels || fail "there are no wheels; call make gpu-wheels first, on a machine with a network"
rm -rf .gpu-site
"$$python" -m pip install --disable-pip-version-check -q --no-index --no-deps --target .gpu-site .gpu-wheels/*.whl
mkdir .gpu-site/weft.dist-info  # weft runs from here, and asks for its version
printf 'Name: weft\nVersion: %s\n' "$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" > .gpu-site/weft.dist-info/METADATA
export PYTHONPATH="$$PWD/.gpu-site:$$PWD" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 TRITON_INTERPRET=0
endef
GPU_TEST := -P -m pytest -p pytest_timeout -W default -m gpu

gpu-check:
	@$(GPU_SITE)
	code=0
	try() { "$$python" $(GPU_TEST) --durations=10 "$$@" || code=$$?; }
ifdef ARGS
	try $(if $(findstring tests/gpu,$(ARGS)),,tests/gpu) $(ARGS)
else
	try tests/gpu --ignore=tests/gpu/test_exact.py
	try tests/gpu/test_exact.py  # what --exact sets holds for a whole process
endif
	exit $$code

# Every tensor gets memory of its own, so that what lies beyond it is known to be. Nothing can be captured like that, so the
# files are those of single kernels. Long: ARGS="tests/gpu/test_attention.py" takes one at a time.
gpu-memcheck:
	@$(GPU_SITE)
	sanitizer=$$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
	test -x "$$sanitizer" || fail "there is no compute-sanitizer here; it comes with NVIDIA's CUDA toolkit"
	code=0
	export PYTORCH_NO_CUDA_MEMORY_CACHING=1
	for file in $(or $(ARGS),tests/gpu/test_attention.py tests/gpu/test_fused_ops.py tests/gpu/test_adapters.py); do
		"$$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 \
			"$$python" $(GPU_TEST) -o timeout=600 $$file || code=$$?
	done
	exit $$code

gpu-bench:
	@$(GPU_SITE)
	"$$python" -P -m benchmarks.gpu $(or $(ARGS),--help)

check: .venv/ready proto-check manifests-check
	@$(VENV) -m ruff check .
	$(VENV) -m mypy
	$(VENV) -m launcher.settings_docs --check
	$(VENV) -m router.telemetry.metrics_docs --check
	$(VENV) -m router.http.fields_docs --check
	$(VENV) -m router.http.page.stale_build_check

proto: .venv-proto/ready
	@$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=.

proto-check: .venv-proto/ready
	@fresh=$$(mktemp -d)
	trap 'rm -rf "$$fresh"' EXIT
	$(PROTOC) --python_out="$$fresh" --pyi_out="$$fresh" --grpc_python_out="$$fresh"
	for file in "$$fresh"/shard/pb/*; do
		cmp -s "$$file" "shard/pb/$$(basename "$$file")" || { echo "$$(basename "$$file") is stale: make proto" >&2; exit 1; }
	done

manifests-check: .venv-manifests/ready
	@.venv-manifests/bin/python -P tests/support/kubernetes_manifests.py

# The page is built once and committed, so that nothing else needs Node.js; `check` compares digests.
router/http/page/node_modules/.package-lock.json: router/http/page/package-lock.json
	@cd router/http/page && npm ci --ignore-scripts --no-audit --no-fund

page: router/http/page/node_modules/.package-lock.json
	@cd router/http/page && npm run --silent build

page-check: router/http/page/node_modules/.package-lock.json
	@cd router/http/page && npm run --silent check

test-page: .venv/ready router/http/page/node_modules/.package-lock.json
	@$(PYTEST) -m page $(ARGS)

docs: .venv/ready
	@$(VENV) -m launcher.settings_docs
	$(VENV) -m router.telemetry.metrics_docs
	$(VENV) -m router.http.fields_docs

docs-site: .venv-docs/ready
	@rm -rf .site
	.venv-docs/bin/python docs/site/collect.py .site/pages
	.venv-docs/bin/codespell $$(find .site/pages -name '*.md')
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -q --strict -f docs/site/mkdocs.yml
	echo "weft: the site is in .site/html, the first page is index.html"

bench: .venv/ready
	@$(VENV) -m benchmarks.experiments.router_cost $(ARGS)

study: .venv/ready
	@$(VENV) -m benchmarks.study batching $(ARGS)

# With what the set-up has installed, so that it works without a network.
dist: .venv/ready
	@$(VENV) -m pip wheel --disable-pip-version-check -q --no-deps --no-build-isolation -w $(DIST) .
	echo "weft: $$(ls $(DIST)/weft-*.whl)"

stats: .venv/ready
	@$(VENV) tests/support/code_stats.py
	echo
	PYTHONPATH=tests GRPC_VERBOSITY=none $(VENV) -m support.call_path_stats

clean:
	@rm -rf .venv .venv-proto .venv-manifests .clients router/http/page/node_modules .gpu-wheels .gpu-site .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
