#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests that were built: unit, suite, fuzz corpora, simulation, system, and the Arm kernels under emulation.
# One line per program; the tail of its output when it fails; the last line is "N passed, N failed, N skipped".
#
# Usage: tests/run.sh [WORD...]    only programs whose name holds one of the words
# Reads BUILD, SEEDS, ARM_RUN, VM, TEST_TIMEOUT (seconds per program) from the environment.
#
# A program says how it went by its exit status: 0, 77 (skipped; its last line is the reason), anything else failed.
# One that speaks cmocka or TAP is counted by cases, others as one.
#
# One that needs RDMA devices says so in a line of its head, "vm: OPTIONS", those of tests/vm/run.sh. It runs as it is where
# a device is active, else in a virtual machine made with these options; as rdma/NAME. "vm: OPTIONS -- ARGUMENTS" is a run
# with arguments beside the plain one; there may be several such lines, for rdma/NAME, rdma/NAME-2 and so on. VM says which machine: uml (the default), qemu (what a program under the address
# or thread sanitizer needs), or nothing, for none.
set -u
cd "$(dirname "$0")/.." || exit 1

BUILD=${BUILD:-build}
SEEDS=${SEEDS:-1000}
ARM_RUN=${ARM_RUN-qemu-aarch64-static}
VM=${VM-uml}
TEST_TIMEOUT=${TEST_TIMEOUT:-300}
LOGS=$BUILD/test-logs
words=("$@")
passed=0 failed=0 skipped=0

export BUILD
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=0:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export LC_ALL=C

wanted() { # NAME
	local word

	((${#words[@]} == 0)) && return 0
	for word in "${words[@]}"; do
		[[ $1 == *"$word"* ]] && return 0
	done
	return 1
}

# Prints "PASSED FAILED SKIPPED" of a log, nothing when it holds no cases. Cases that began and never ended (a crash, a
# hang) are failures.
count_cases() { # LOG
	awk '
		/^\[ RUN      \]/ { begun++ }
		/^\[       OK \]/ { ok++ }
		/^\[  SKIPPED \] [0-9]+ test/ { skips += $4 } # of one group; a program may run several
		/^ok [0-9]/ { if (/# [Ss][Kk][Ii][Pp]/) tap_skip++; else tap_ok++ }
		/^not ok [0-9]/ { tap_fail++ }
		END {
			if (begun) {
				print ok + 0, begun - ok - skips, skips + 0
			} else if (tap_ok + tap_skip + tap_fail) {
				print tap_ok + 0, tap_fail + 0, tap_skip + 0
			}
		}' "$1"
}

# Why the first skipped case was: TAP says so behind "# SKIP", a cmocka test prints it just before it skips.
skip_reason() { # LOG
	awk '
		/^ok [0-9].*# [Ss][Kk][Ii][Pp]/ { sub(/.*# [Ss][Kk][Ii][Pp] */, ""); print; exit }
		/^\[  SKIPPED \] [A-Za-z_]/ { print before ~ /^\[ RUN/ ? $4 : before; exit }
		{ before = $0 }' "$1"
}

run() { # NAME COMMAND...
	local name=$1 log status cases p f s start verdict note=

	shift
	wanted "$name" || return 0
	log=$LOGS/${name//\//.}.log
	start=$EPOCHREALTIME
	timeout --kill-after=10 "$TEST_TIMEOUT" "$@" >"$log" 2>&1 </dev/null
	status=$?
	cases=$(count_cases "$log")
	if [[ -n $cases ]]; then
		read -r p f s <<<"$cases"
		((status != 0 && f == 0)) && f=1
	elif ((status == 0)); then
		p=1 f=0 s=0
	elif ((status == 77)); then
		p=0 f=0 s=1
	else
		p=0 f=1 s=0
	fi
	((passed += p, failed += f, skipped += s))
	((s > 0)) && note=$(skip_reason "$log")
	((status == 77)) && note=$(tail -1 "$log")
	((status == 124 || status == 137)) && note="killed after $TEST_TIMEOUT s"
	verdict=ok
	((p == 0 && s > 0)) && verdict=skip
	((f > 0)) && verdict=FAIL
	printf '%-4s %-44s %4d passed%s%s %7.2f s%s\n' "$verdict" "$name" "$p" \
		"$( ((f > 0)) && echo ", $f failed")" "$( ((s > 0)) && echo ", $s skipped")" \
		"$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" "${note:+  ($note)}"
	if ((f > 0)); then
		echo "---- exit status $status; the end of $log:"
		tail -40 "$log"
		echo "----"
	fi
}

skip() { # NAME REASON
	wanted "$1" || return 0
	((skipped++))
	printf '%-4s %-44s    0 passed, 1 skipped  (%s)\n' skip "$1" "$2"
}

# Sets rdma to where devices are: "here", "uml" or "qemu", "none" or "broken"; and why there are none. The first who asks may
# wait minutes for a kernel.
rdma='' why=''
rdma_find() {
	local log=$LOGS/vm.log maker=tests/vm/uml.sh

	if grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state; then
		rdma=here
	elif [[ -z $VM ]]; then
		rdma=none why="VM is empty"
	else
		[[ $VM != qemu ]] || maker=tests/vm/debian.sh
		$maker 2>&1 >/dev/null | tee "$log"
		case ${PIPESTATUS[0]} in
		0) rdma=$VM ;;
		77) rdma=none why=$(tail -1 "$log") ;;
		*) rdma=broken ;;
		esac
	fi
}

run_rdma() { # NAME OPTIONS[-- ARGUMENTS] COMMAND...
	local name=rdma/$1 machine=(tests/vm/run.sh -t "$TEST_TIMEOUT" -r "$BUILD") variable options arguments

	wanted "$name" || return 0
	[[ -n $rdma ]] || rdma_find
	read -ra options <<<"${2%%-- *}"
	read -ra arguments <<<"$([[ $2 != *"-- "* ]] || echo "${2#*-- }")"
	shift 2
	for variable in BUILD SEEDS LC_ALL ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS; do
		machine+=(-e "$variable")
	done
	case $rdma in
	here) run "$name" "$@" "${arguments[@]}" ;;
	uml) run "$name" "${machine[@]}" -U "${options[@]}" -- "$@" "${arguments[@]}" ;;
	qemu) run "$name" "${machine[@]}" "${options[@]}" -- "$@" "${arguments[@]}" ;;
	none) skip "$name" "no RDMA device here and no virtual machine: $why" ;;
	broken) run "$name" sh -c "cat '$LOGS/vm.log'; exit 1" ;;
	esac
}

run_test() { # NAME SOURCE COMMAND...
	local name=$1 lines i

	mapfile -t lines < <(sed -n '1,20s/^[ */#]*vm: //p' "$2")
	shift 2
	if ((${#lines[@]} == 0)) || [[ ${lines[0]} == *"-- "* ]]; then
		run "$name" "$@"
	fi
	for ((i = 0; i < ${#lines[@]}; i++)); do
		run_rdma "$name$( ((i == 0)) || echo "-$((i + 1))")" "${lines[i]}" "$@"
	done
}

mkdir -p "$LOGS"
shopt -s nullglob

# The sources say what there is, so that a program of a deleted test in an old build folder is not run.
for source in tests/unit/test_*.c tests/suite/test_*.c; do
	name=${source#tests/}
	name=${name%.c}
	run_test "$name" "$source" "$BUILD/tests/$name"
done
for source in tests/fuzz/fuzz_*.c; do
	name=$(basename "$source" .c)
	name=${name#fuzz_}
	run "fuzz/$name" "$BUILD/tests/fuzz/replay_$name" "tests/fuzz/corpus/$name"
done
sources=(tests/sim/*.c)
if ((${#sources[@]})); then
	run "sim ($SEEDS seeds)" "$BUILD/sim" --seeds "$SEEDS"
fi
for script in tests/system/*.sh tests/system/*.py; do
	[[ -x $script ]] && run_test "system/$(basename "$script")" "$script" "$script"
done
# An empty ARM_RUN leaves Arm out: emulation says nothing about this compiler or sanitizer.
programs=()
for source in tests/unit/test_*.c; do
	program=$BUILD/arm/${source%.c}
	[[ -x $program ]] && programs+=("$program")
done
if [[ -z $ARM_RUN ]]; then
	:
elif ! command -v "$ARM_RUN" >/dev/null; then
	skip arm "no $ARM_RUN: install qemu-user-static"
elif ((${#programs[@]} == 0)); then
	skip arm "not built: install gcc-aarch64-linux-gnu"
else
	for program in "${programs[@]}"; do
		run "arm/$(basename "$program")" "$ARM_RUN" "$program"
	done
fi

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
