#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything about the source that can be checked without running it: our own rules (check.py), layout (clang-format),
# shell scripts (shellcheck), and what cppcheck knows. VLAs, prototypes and shadowing are the compiler's, with -Werror.
#
# Usage: deploy/lint/lint.sh              checks the tree; exits 1 when anything is wrong
#        deploy/lint/lint.sh --self-test  plants one violation of each kind and checks that it is found
#        deploy/lint/lint.sh --list-c     the C files that are checked
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "${LINT_ROOT:-$here/../..}" || exit 1

FOLDERS=(phub transport aggregation client topology tests deploy .ci)
CLANG_FORMAT=${CLANG_FORMAT:-clang-format-14}

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
	exec "$here/self_test.sh"
fi

mapfile -t c_files < <(list '*.[ch]')
mapfile -t scripts < <(list '*.sh' run | xargs -r grep -l '^#!.*sh$')
mapfile -t others < <(list '*.py' '*.proto' '*.service'; [[ -f Makefile ]] && echo Makefile)
status=0

check() { # NAME COMMAND...
	local name=$1

	shift
	if ! "$@"; then
		echo "lint: $name: failed" >&2
		status=1
	fi
}

check rules python3 "$here/check.py" . "${c_files[@]}" "${scripts[@]}" "${others[@]}"
if ((${#c_files[@]})); then
	check format "$CLANG_FORMAT" --style=file:"$here/../../.clang-format" --dry-run -Werror "${c_files[@]}"
	# Its cppcheck-build folder makes a second run look at changed files only.
	cache=${LINT_CACHE:-build/cppcheck}
	mkdir -p "$cache"
	check cppcheck cppcheck --quiet -j 2 --enable=warning,portability --error-exitcode=1 --inline-suppr --std=c11 \
		--platform=unix64 --suppressions-list="$here/cppcheck.txt" --cppcheck-build-dir="$cache" \
		-I. -D_GNU_SOURCE -D__x86_64__ "${c_files[@]}"
fi
if ((${#scripts[@]})); then
	check shellcheck shellcheck "${scripts[@]}"
fi
((status == 0)) && echo "lint: ${#c_files[@]} C files, ${#scripts[@]} scripts, ${#others[@]} others: clean"
exit $status
