#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzzer in BUILD for SECONDS each. New inputs go to BUILD/corpus, inputs that crash to BUILD/crashes; copy
# those worth keeping to tests/fuzz/corpus/NAME, where `make test` replays them.
#
# Usage: BUILD=build-fuzz tests/fuzz/run.sh SECONDS
set -eu
cd "$(dirname "$0")/../.."

seconds=${1:?usage: tests/fuzz/run.sh SECONDS}
failed=0 passed=0
export UBSAN_OPTIONS=print_stacktrace=1

for program in "$BUILD"/tests/fuzz/fuzz_*; do
	name=$(basename "$program")
	name=${name#fuzz_}
	mkdir -p "$BUILD/corpus/$name" "$BUILD/crashes"
	log=$BUILD/fuzz-$name.log
	seeds=()
	[[ -d tests/fuzz/corpus/$name ]] && seeds=("tests/fuzz/corpus/$name")
	if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$BUILD/crashes/$name-" "$BUILD/corpus/$name" "${seeds[@]}" \
		>"$log" 2>&1 </dev/null; then
		passed=$((passed + 1))
		echo "ok   fuzz/$name  $(awk '/number_of_executed_units/ { print $2 }' "$log") inputs"
	else
		failed=$((failed + 1))
		echo "FAIL fuzz/$name; the end of $log:"
		tail -30 "$log"
	fi
done
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0))
