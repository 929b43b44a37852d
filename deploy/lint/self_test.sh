#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Does lint.sh find what it should? Each case plants one violation in a tree of its own and names what must be said
# about it; the clean tree, and what looks wrong but is allowed, must pass. Called by lint.sh --self-test.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 count=0
licence='/* SPDX-License-Identifier: Apache-2.0 */'

fresh() {
	rm -rf "$work/tree"
	mkdir -p "$work/tree"/{phub/base,phub/control,phub/cli,transport,aggregation,client,topology,tests/unit,deploy/k8s}
	local file
	for file in phub/base/mem phub/chunk phub/control/job transport/wire topology/model aggregation/kernels \
		aggregation/convert client/lane client/phub; do
		echo "$licence" >"$work/tree/$file.h"
	done
}

lint() {
	LINT_ROOT=$work/tree LINT_CACHE=$work/cache "$here/lint.sh" 2>&1
}

# The text after the licence line is the file; "-" as what is expected means that it must pass.
plant() { # EXPECTED FILE LINE...
	local expected=$1 file=$2 output status=0

	shift 2
	fresh
	{
		case $file in *.sh | *.yaml) ;; *) echo "$licence" ;; esac
		printf '%s\n' "$@"
	} >"$work/tree/$file"
	output=$(lint) || status=$?
	count=$((count + 1))
	if [[ $expected == - ]]; then
		((status == 0)) && return
		echo "lint self-test: $file should pass: $*"
	else
		((status != 0)) && grep -qE "$expected" <<<"$output" && return
		echo "lint self-test: $file: nothing like \"$expected\" was said of: $*"
	fi
	echo "$output"
	failed=$((failed + 1))
}

lines() { # COUNT TEXT
	for ((i = 0; i < $1; i++)); do
		printf '%s\n' "$2"
	done
}

include() { # FILE HEADER
	plant "layer rule" "$1" "#include \"$2\""
}

# Layers.
include phub/base/a.c transport/wire.h
include aggregation/a.c transport/wire.h
include aggregation/a.c topology/model.h
include topology/a.c aggregation/kernels.h
include topology/a.c transport/wire.h
include transport/a.c aggregation/kernels.h
include transport/a.c topology/model.h
include transport/a.h phub/chunk.h
include phub/a.c phub/control/job.h
include phub/a.c client/lane.h
include phub/control/a.c aggregation/kernels.h
include phub/control/a.c client/lane.h
include client/a.c phub/chunk.h
include client/a.c phub/control/job.h
include client/a.c aggregation/kernels.h
include phub/main.c client/lane.h
plant - client/a.c '#include "aggregation/convert.h"'
plant - phub/main.c '#include "phub/chunk.h"' '#include "phub/control/job.h"'
plant - phub/cli/a.c '#include "client/lane.h"' '#include "phub/base/mem.h"'
plant - tests/unit/a.c '#include "phub/chunk.h"' '#include "client/lane.h"'
plant - transport/a.c '/* #include "phub/chunk.h" */'
plant "full path" transport/a.c '#include "wire.h"'
plant "full path" client/a.h '#include "phub.h"'
plant - client/phub_sites.h '#include "phub.h"'
plant "no such file" transport/a.c '#include "transport/missing.h"'
plant "own header first" phub/chunk.c '#include "phub/base/mem.h"' '#include "phub/chunk.h"'
plant - phub/chunk.c '#include "phub/chunk.h"' '#include "phub/base/mem.h"'

# Foreign headers.
plant "may only be included" transport/tcp.c '#include <infiniband/verbs.h>'
plant - transport/verbs.c '#include <infiniband/verbs.h>'
plant "may only be included" transport/udp.c '#include <rte_mbuf.h>'
plant - transport/dpdk_port.c '#include <rte_mbuf.h>'
plant "may only be included" phub/a.c '#include <immintrin.h>'
plant "may only be included" aggregation/convert.c '#include "aggregation/convert.h"' '' '#include <immintrin.h>'
plant - aggregation/kernels_avx2.c '#include <immintrin.h>'
plant "may only be included" phub/control/a.c '#include <hwloc.h>'

# Calls.
body() { # STATEMENT
	printf '%s\n' 'void f(void);' '' 'void f(void)' '{' "	$1" '}'
}
for call in 'sprintf(a, b)' 'strcpy(a, b)' 'strcat(a, b)' 'gets(a)' 'atoi(a)' 'rand()' 'alloca(8)' 'system(a)' \
	'popen(a, b)'; do
	plant "${call%%(*}\(\):" phub/control/a.c "$(body "$call;")"
done
for call in 'printf("x")' 'puts("x")' 'exit(1)' 'fprintf(stderr, "x")'; do
	plant "libphub" client/a.c "$(body "$call;")"
	plant "data path" phub/a.c "$(body "$call;")"
done
plant "data path" phub/a.c "$(body 'log_warn("x");')"
plant - phub/control/a.c "$(body 'log_warn("x");')"
plant - client/example.c "$(body 'puts("x");')"
plant - client/example_scout.c "$(body 'puts("x");')"
for call in 'malloc(8)' 'free(a)' 'pthread_mutex_lock(a)'; do
	plant "arithmetic" aggregation/a.c "$(body "$call;")"
done
plant - phub/a.c "$(body 'log_warn_count = my_rand(1) + box->exit(2); /* printf() */')"
plant - phub/control/a.c "$(body 'log_info("system() is not called here");')"

# Sizes and names.
plant "function of 71 lines" phub/a.c 'void f(void);' '' 'void f(void)' '{' "$(lines 69 '	g();')" '}'
plant - phub/a.c 'void f(void);' '' 'void f(void)' '{' "$(lines 68 '	g();')" '}'
plant "file of 801 lines" phub/a.h "$(lines 800 '/* A line. */')"
plant - phub/a.h "$(lines 799 '/* A line. */')"
plant "typedef struct" phub/a.h 'typedef struct chunk chunk_t;'
plant - client/phub.h 'typedef struct phub phub_t;'
plant - client/phub_sites.h 'typedef struct phub_site phub_site_t;'
plant "public API" phub/a.c 'void phub_start(void);'

# Headers that need another one before them, or can be included only once.
plant "a.h.*size_t" client/a.h 'static inline size_t f(void)' '{' '	return 0;' '}'
plant "a.h.*redefinition" client/a.h 'struct a {' '	int b;' '};'
plant - client/a.h '#pragma once' '#include <stddef.h>' '' 'struct a {' '	size_t b;' '};'
plant - aggregation/kernels_simd.h 'vec f(vec a);'

# Files that are not C, and the common tools.
plant "no line" deploy/a.sh '#!/bin/sh' 'true'
plant "SC2086" deploy/a.sh '#!/bin/sh' '# SPDX-License-Identifier: Apache-2.0' "ls \$1"
plant "syntax" deploy/a.py 'def'
plant "line of 161 columns" deploy/a.py "#$(printf '%160s' a)"
plant "a.c: not laid out" phub/a.c 'int  a;'
plant "a.c: not laid out" phub/a.c "/* $(printf 'word %.0s' {1..25})*/"
plant "nullPointer" phub/control/a.c 'int f(void);' '' 'int f(void)' '{' '	int *a = 0;' '' '	return *a;' '}'

# Kubernetes: the files that we have, each time with something else in one of them.
manifest() { # EXPECTED SED-EXPRESSION [FILE]
	local from=$here/../k8s file output status=0

	fresh
	cp "$from"/*.yaml "$work/tree/deploy/k8s/"
	sed -i "$2" "$work/tree/deploy/k8s/${3:-box}.yaml"
	count=$((count + 1))
	output=$(lint) || status=$?
	if [[ $1 == - ]]; then
		((status == 0)) && return
	elif ((status != 0)) && grep -qE "$1" <<<"$output"; then
		return
	fi
	echo "lint self-test: deploy/k8s with \"$2\": not \"$1\""
	echo "$output"
	failed=$((failed + 1))
}

manifest - ''
manifest "trailing spaces" 's/^spec:/spec: /'
manifest "while parsing|syntax error" 's/^spec:/spec: [/'
manifest "no field 'replica'" 's/replicas: 1/replica: 1/'
manifest "'4' is no whole number" "s/replicas: 1/replicas: '4'/"
manifest "apiVersion 'v1'; of a StatefulSet" 's,apps/v1,v1,'
manifest "lacks 'limits'" '/limits:/d'
manifest "the limit not below it" 's/limits: {cpu: "4"/limits: {cpu: 500m/'
manifest "runAsNonRoot: False" 's/runAsNonRoot: true/runAsNonRoot: false/'
manifest "tag that is not latest" 's/phub-box:0.1.0/phub-box:latest/'
manifest "its selector does not fit" '/^  selector:/,/template:/s/component: node-box/component: box/' nodes
manifest "no pod that it selects has a port 'data-9'" 's/targetPort: data-3/targetPort: data-9/' nodes
manifest "allowed: Local, Cluster" 's/internalTrafficPolicy: Local/internalTrafficPolicy: local/' nodes
manifest "no Service 'phub-bax'" 's/serviceName: phub-box/serviceName: phub-bax/'
manifest "secret 'phub-secrets' is neither" 's/secretName: phub-secret/secretName: phub-secrets/'
manifest "mounts 'configs', which is no volume" 's/name: config, mountPath/name: configs, mountPath/'
manifest "no pod that it selects has a port 'kontrol'" 's/targetPort: control/targetPort: kontrol/'
manifest "no pod here has the labels" '/- podSelector/,/matchLabels/s/component: worker/component: workers/'
manifest "'phub-box' is no Service here with a port" 's/uplink: phub-box:7077/uplink: phub-box/' nodes
manifest "'phub-bax:7077' is no Service here" 's/uplink: phub-box:7077/uplink: phub-bax:7077/' nodes
manifest "and WORLD_SIZE \[4\] the same" 's/completions: 4/completions: 5/' workers

echo "lint self-test: $((count - failed)) passed, $failed failed"
((failed == 0))
