#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything about the source that can be checked without running it: our own rules (check.py), layout (clang-format),
# headers that need no other (the compiler), shell scripts (shellcheck), YAML (yamllint; Kubernetes' also by k8s.py), and what
# cppcheck knows. VLAs, prototypes and
# shadowing are the compiler's, with -Werror.
#
# Usage: deploy/lint/lint.sh              checks the tree; exits 1 when anything is wrong
#        deploy/lint/lint.sh --self-test  plants one violation of each kind and checks that it is found
#        deploy/lint/lint.sh --headers    only: does every header compile by itself? All else is the same with every compiler
#        deploy/lint/lint.sh --list-c     the C files that are checked
#
# Environment, as `make lint` sets it: CC, the compiler; CCACHE, what it is called by; LINT_CFLAGS, what it compiles with; BUILD, the folder whose gen/
# holds the generated headers.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "${LINT_ROOT:-$here/../..}" || exit 1

FOLDERS=(phub transport aggregation client topology tests deploy .ci)
CLANG_FORMAT=${CLANG_FORMAT:-clang-format-14}
CC=${CC:-gcc}
BUILD=${BUILD:-build}
CFLAGS=${LINT_CFLAGS:--std=gnu11 -Wall -Wextra -Werror -I. -I$BUILD/gen -D_GNU_SOURCE}

# Templates: a .c defines their macros, then includes them. They are compiled with it and cannot be by themselves.
TEMPLATES='^aggregation/kernels_(simd|roofline_loop)\.h$'

list() { # NAME-PATTERN...
	local pattern names=()

	for pattern in "$@"; do
		names+=(-o -name "$pattern")
	done
	find "${FOLDERS[@]}" -type f \( "${names[@]:1}" \) 2>/dev/null | sort
}

if [[ ${1-} == --list-c ]]; then
	list '*.[ch]'
	exit 0
fi
if [[ ${1-} == --self-test ]]; then
	exec /usr/bin/python3 "$here/self_test.py" # Debian's: it has yaml
fi

mapfile -t c_files < <(list '*.[ch]')
mapfile -t scripts < <(list '*.sh' '*.sbatch' run | xargs -r grep -l '^#!.*sh$')
mapfile -t manifests < <(list '*.yaml' | grep '^deploy/k8s/')
mapfile -t others < <(list '*.py' '*.proto' '*.service' Dockerfile yamllint.yaml; [[ -f Makefile ]] && echo Makefile)
others+=("${manifests[@]}")
status=0

failed() { # NAME
	echo "lint: $1: failed" >&2
	status=1
}

# One line per file: what is wrong in it, `make format` mends.
format_check() { # FILE...
	"$CLANG_FORMAT" --style=file:"$here/../../.clang-format" --dry-run -Werror "$@" 2>&1 |
		awk -F: '/ (error|warning): / && !seen[$1]++ { print $1 ": not laid out by .clang-format; run make format" }
			END { exit length(seen) != 0 }'
}

# Each header is included alone, and twice: one without a guard shows. Objects, not only syntax: ccache keeps those. A function
# of a test need not use all that it is given.
headers_check() { # HEADER...
	local objects group status=0 own=()

	objects=$(mktemp -d)
	printf '%s\n' "$@" | xargs dirname | sort -u | (cd "$objects" && xargs mkdir -p)
	for group in 'tests/' '(?!tests/)'; do
		[[ $group == tests/ ]] && own=(-Wno-unused-parameter) || own=()
		# shellcheck disable=SC2086 # the compiler and its flags are lists of words
		printf '%s\n' "$@" | grep -P "^$group" | grep -Ev "$TEMPLATES" |
			xargs -r -P "$(nproc)" -I{} ${CCACHE-} $CC $CFLAGS "${own[@]}" -c -x c -include {} -include {} \
				-o "$objects/{}.o" /dev/null || status=1
	done
	rm -rf "$objects"
	return $status
}

if [[ ${1-} == --headers ]]; then
	mapfile -t headers < <(list '*.h')
	headers_check "${headers[@]}" || failed "headers, each by itself"
	((status == 0)) && echo "lint: ${#headers[@]} headers: clean"
	exit $status
fi

# Headers come in where they are included. The cache makes a second run look at changed files only.
cppcheck_run() { # FILE...
	local cache=${LINT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/phub-cppcheck}

	mkdir -p "$cache"
	cppcheck --quiet -j 2 --enable=warning,portability --error-exitcode=1 --inline-suppr --std=c11 --platform=unix64 \
		--suppressions-list="$here/cppcheck.txt" --cppcheck-build-dir="$cache" -I. -D_GNU_SOURCE -D__x86_64__ "$@"
}

python3 "$here/check.py" . "${c_files[@]}" "${scripts[@]}" "${others[@]}" || failed rules
if ((${#c_files[@]})); then
	format_check "${c_files[@]}" || failed format
	mapfile -t headers < <(list '*.h')
	((${#headers[@]} == 0)) || headers_check "${headers[@]}" || failed "headers, each by itself"
	mapfile -t sources < <(list '*.c')
	((${#sources[@]} == 0)) || cppcheck_run "${sources[@]}" || failed cppcheck
fi
if ((${#manifests[@]})); then
	# Debian's, whatever python3 is in PATH: it has yaml.
	yamllint --strict --config-file "$here/yamllint.yaml" "${manifests[@]}" || failed yamllint
	/usr/bin/python3 "$here/k8s.py" "${manifests[@]}" || failed kubernetes
fi
((${#scripts[@]} == 0)) || shellcheck "${scripts[@]}" || failed shellcheck
((status == 0)) && echo "lint: ${#c_files[@]} C files, ${#scripts[@]} scripts, ${#others[@]} others: clean"
exit $status
