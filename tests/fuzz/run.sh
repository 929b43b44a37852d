#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzzer in BUILD, or those named, for SECONDS each, FUZZ_JOBS (as many as there are CPUs) at the same time. New inputs go to
# BUILD/corpus, inputs that crash to BUILD/crashes; copy those worth keeping to tests/fuzz/corpus/NAME, where `make test`
# replays them.
#
# Usage: BUILD=build-fuzz tests/fuzz/run.sh SECONDS [PROGRAM...]
set -eu
cd "$(dirname "$0")/../.."

seconds=${1:?usage: tests/fuzz/run.sh SECONDS [PROGRAM...]}
shift
export seconds UBSAN_OPTIONS=print_stacktrace=1

# Says in one go how it went: others do the same.
fuzz() { # PROGRAM
	local program=$1 name log seeds=() said=ok

	name=$(basename "$program")
	name=${name#fuzz_}
	mkdir -p "$BUILD/corpus/$name" "$BUILD/crashes"
	log=$BUILD/fuzz-$name.log
	[[ -d tests/fuzz/corpus/$name ]] && seeds=("tests/fuzz/corpus/$name")
	"$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$BUILD/crashes/$name-" "$BUILD/corpus/$name" "${seeds[@]}" >"$log" 2>&1 </dev/null || said=FAIL
	if [[ $said == ok ]]; then
		echo "ok   fuzz/$name  $(awk '/number_of_executed_units/ { print $2 }' "$log") inputs"
	else
		echo "FAIL fuzz/$name; the end of $log:"$'\n'"$(tail -30 "$log")"
	fi
}
export -f fuzz

programs=("$@")
(($#)) || programs=("$BUILD"/tests/fuzz/fuzz_*)
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# shellcheck disable=SC2016 # a shell of its own expands it
printf '%s\0' "${programs[@]}" | xargs -0 -n 1 -P "${FUZZ_JOBS:-$(nproc)}" bash -c 'fuzz "$1"' run.sh | tee "$said"
passed=$(grep -c '^ok   fuzz/' "$said") || :
failed=$((${#programs[@]} - passed))
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0))
