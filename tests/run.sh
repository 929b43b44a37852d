#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests that were built: unit, suite, fuzz corpora, simulation, system, and the Arm kernels under emulation.
# One line per program; the tail of its output when it fails; the last line is "N passed, N failed, N skipped".
#
# Usage: tests/run.sh [WORD...] [-WORD...]    only programs whose name holds one of the words, and none of those with a minus
# Reads BUILD, SEEDS, SEEDS_FROM (the first of them: 1), ARM_RUN, VM, TEST_TIMEOUT (seconds per program), TEST_JOBS (how many
# compute at the same time: as many as there are CPUs), AHEAD (a process group that stands still where a test must be alone)
# from the environment.
#
# A program says how it went by its exit status: 0, 77 (skipped; its last line is the reason), anything else failed.
# One that speaks cmocka or TAP is counted by cases, others as one.
#
# Lines in the head of a test say how it must be run:
#   alone: WHY     nothing else may run beside it
#   waits: WHY     it hardly computes: such tests run beside the others, two at a time, and take no CPU's place
#   parts: WORD... it takes long: a run for each word, which is its argument, as NAME-WORD, and none of the whole
#   machines: WHY  it starts virtual machines by itself: it runs when their kernel is there
#   vm: OPTIONS    it needs RDMA devices. It runs as it is where one is active, else in a virtual machine made with these
#                  options, those of tests/vm/run.sh; as rdma/NAME
#   vm: OPTIONS -- ARGUMENTS    a run with arguments beside the plain one
# There may be several vm: lines, for rdma/NAME, rdma/NAME-2 and so on. VM says which machine: uml (the default), qemu (what
# a program under the address or thread sanitizer needs), or nothing, for none.
set -u
cd "$(dirname "$0")/.." || exit 1

BUILD=${BUILD:-build}
SEEDS=${SEEDS:-1000}
SEEDS_FROM=${SEEDS_FROM:-1}
ARM_RUN=${ARM_RUN-qemu-aarch64-static}
VM=${VM-uml}
TEST_TIMEOUT=${TEST_TIMEOUT:-300}
TEST_JOBS=${TEST_JOBS:-$(nproc)}
LOGS=$BUILD/test-logs
words=("$@")

export BUILD TEST_TIMEOUT LOGS
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=0:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export LC_ALL=C

wanted() { # NAME
	local word found=1

	[[ "${words[*]}" =~ (^| )[^-] ]] || found=0
	for word in "${words[@]}"; do
		[[ $word != -* || $1 != *"${word#-}"* ]] || return 1
		[[ $word == -* || $1 != *"$word"* ]] || found=0
	done
	return $found
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

# Runs one program and says how it went, in one go: others may be doing the same. Its counts go to a file, for the sum.
execute() { # NAME COMMAND...
	local name=$1 log=$LOGS/${1//\//.}.log status cases p f s start cpu verdict note=

	shift
	start=$EPOCHREALTIME
	timeout --kill-after=10 "$TEST_TIMEOUT" "$@" >"$log" 2>&1 </dev/null
	status=$?
	times >"${log%.log}.said" # not in a subshell, which has no children
	cpu=$(awk 'NR == 2 { gsub(/[ms]/, " "); print $1 * 60 + $2 + $3 * 60 + $4 }' "${log%.log}.said")
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
	echo "$p $f $s" >"${log%.log}.counts"
	((s > 0)) && note=$(skip_reason "$log")
	((status == 77)) && note=$(tail -1 "$log")
	((status == 124 || status == 137)) && note="killed after $TEST_TIMEOUT s"
	verdict=ok
	((p == 0 && s > 0)) && verdict=skip
	((f > 0)) && verdict=FAIL
	{
		printf '%-4s %-38s %4d passed%s%s %7.2f s, %6.2f of CPUs%s\n' "$verdict" "$name" "$p" \
			"$( ((f > 0)) && echo ", $f failed")" "$( ((s > 0)) && echo ", $s skipped")" \
			"$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" "$cpu" "${note:+  ($note)}"
		if ((f > 0)); then
			echo "---- exit status $status; the end of $log:"
			tail -40 "$log"
			echo "----"
		fi
	} >"${log%.log}.said"
	flock "$LOGS/lock" cat "${log%.log}.said"
	rm "${log%.log}.said"
}

skip() { # NAME REASON
	echo "0 0 1" >"$LOGS/${1//\//.}.counts"
	printf '%-4s %-38s    0 passed, 1 skipped  (%s)\n' skip "$1" "$2"
}

# What is to run, a shell command each: side by side, in the gaps that these leave, beside each other in virtual machines, one
# by one.
beside=() waits=() in_machines=() alone=()

add() { # LIST NAME COMMAND...
	local -n list=$1

	wanted "$2" || return 0
	list+=("$(printf '%q ' execute "${@:2}")")
}

run_all() { # JOBS LINE...
	(($# > 1)) || return 0
	# shellcheck disable=SC2016 # a shell of its own expands it
	printf '%s\0' "${@:2}" | xargs -0 -n 1 -P "$1" bash -c 'eval "$1"' run.sh
}

# Where RDMA devices are: "here", "uml" or "qemu", "none" or "broken"; and why there are none. A kernel may take minutes, so
# it is made beside the tests that need none.
rdma='' why=''
kernel() {
	local maker=tests/vm/uml.sh

	[[ $VM != qemu ]] || maker=tests/vm/debian.sh
	nice $maker 2>&1 >/dev/null | tee "$LOGS/vm.log"
	echo "${PIPESTATUS[0]}" >"$LOGS/vm.status"
}

rdma_find() {
	if grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state; then
		rdma=here
	elif [[ -z $VM ]]; then
		rdma=none why="VM is empty"
	else
		case $(<"$LOGS/vm.status") in
		0) rdma=$VM ;;
		77) rdma=none why=$(tail -1 "$LOGS/vm.log") ;;
		*) rdma=broken ;;
		esac
	fi
}

add_rdma() { # NAME OPTIONS[-- ARGUMENTS] COMMAND...
	local name=rdma/$1 machine=(tests/vm/run.sh -t "$TEST_TIMEOUT" -r "$BUILD") variable options arguments

	wanted "$name" || return 0
	read -ra options <<<"${2%%-- *}"
	read -ra arguments <<<"$([[ $2 != *"-- "* ]] || echo "${2#*-- }")"
	shift 2
	for variable in BUILD SEEDS LC_ALL ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS; do
		machine+=(-e "$variable")
	done
	case $rdma in
	here) add alone "$name" "$@" "${arguments[@]}" ;;
	uml) add in_machines "$name" "${machine[@]}" -U "${options[@]}" -- "$@" "${arguments[@]}" ;;
	qemu) add alone "$name" "${machine[@]}" "${options[@]}" -- "$@" "${arguments[@]}" ;;
	none) skip "$name" "no RDMA device here and no virtual machine: $why" ;;
	broken) add alone "$name" sh -c "cat '$LOGS/vm.log'; exit 1" ;;
	esac
}

add_machines() { # NAME COMMAND...
	if [[ -n $VM ]]; then
		add in_machines "$@"
	else
		skip "$1" "VM is empty"
	fi
}

# Nothing runs yet: a test goes into a list, one for RDMA when it is known where.
for_rdma=()

add_test() { # NAME SOURCE COMMAND...
	local name=$1 where=beside lines parts i

	grep -qE '^[ */#]*alone: ' <(head -20 "$2") && where=alone
	grep -qE '^[ */#]*waits: ' <(head -20 "$2") && where=waits
	if grep -qE '^[ */#]*machines: ' <(head -20 "$2"); then
		wanted "$name" && for_rdma+=("$(printf '%q ' add_machines "$name" "${@:3}")")
		return
	fi
	mapfile -t lines < <(sed -n '1,20s/^[ */#]*vm: //p' "$2")
	read -ra parts < <(sed -n '1,20s/^[ */#]*parts: //p' "$2")
	shift 2
	for ((i = 0; i < ${#parts[@]}; i++)); do
		add $where "$name-${parts[i]}" "$@" "${parts[i]}"
	done
	if ((${#parts[@]} == 0)) && { ((${#lines[@]} == 0)) || [[ ${lines[0]} == *"-- "* ]]; }; then
		add $where "$name" "$@"
	fi
	for ((i = 0; i < ${#lines[@]}; i++)); do
		wanted "rdma/$name" || continue
		for_rdma+=("$(printf '%q ' add_rdma "$name$( ((i == 0)) || echo "-$((i + 1))")" "${lines[i]}" "$@")")
	done
}
mkdir -p "$LOGS"
rm -f "$LOGS"/*.counts "$LOGS/vm.status"
shopt -s nullglob
export -f execute count_cases skip_reason kernel
export VM

# The sources say what there is, so that a program of a deleted test in an old build folder is not run. What takes longest
# comes first, and short ones fill what is left.
for script in tests/system/test_*; do
	[[ -x $script ]] && continue
	echo "tests/run.sh: $script cannot be executed, and would be left out; chmod +x it" >&2
	exit 1
done
for script in tests/system/*.py tests/system/*.sh; do
	[[ -x $script ]] && add_test "system/$(basename "$script")" "$script" "$script"
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
	wanted arm && skip arm "no $ARM_RUN: install qemu-user-static"
elif ((${#programs[@]} == 0)); then
	wanted arm && skip arm "not built: install gcc-aarch64-linux-gnu"
else
	for program in "${programs[@]}"; do
		add beside "arm/$(basename "$program")" "$ARM_RUN" "$program"
	done
fi
sources=(tests/sim/*.c)
if ((${#sources[@]})); then
	add beside "sim (seeds $SEEDS_FROM..$((SEEDS_FROM + SEEDS - 1)))" "$BUILD/sim" --seeds "$SEEDS" --from "$SEEDS_FROM"
fi
for source in tests/suite/test_*.c tests/unit/test_*.c; do
	name=${source#tests/}
	name=${name%.c}
	add_test "$name" "$source" "$BUILD/tests/$name"
done
for source in tests/fuzz/fuzz_*.c; do
	name=$(basename "$source" .c)
	name=${name#fuzz_}
	if [[ $name == dpdk && ! -x $BUILD/tests/fuzz/replay_dpdk ]]; then
		wanted "fuzz/$name" && skip "fuzz/$name" "this build has no DPDK"
		continue
	fi
	add beside "fuzz/$name" "$BUILD/tests/fuzz/replay_$name" "tests/fuzz/corpus/$name"
done

# The kernel takes one of the places and, being nice, of the CPUs what the tests leave.
((${#for_rdma[@]})) && [[ -n $VM ]] && beside=(kernel "${beside[@]}")
run_all 2 "${waits[@]}" &
run_all "$TEST_JOBS" "${beside[@]}"
wait $!
if ((${#for_rdma[@]})); then
	rdma_find
	for line in "${for_rdma[@]}"; do
		eval "$line"
	done
fi
run_all $((TEST_JOBS + 1)) "${in_machines[@]}" # each sleeps for a quarter of its time
[[ -z ${AHEAD-} ]] || kill -STOP -- "-$AHEAD"
run_all 1 "${alone[@]}"
[[ -z ${AHEAD-} ]] || kill -CONT -- "-$AHEAD"

cat /dev/null "$LOGS"/*.counts | awk '{ p += $1; f += $2; s += $3 }
	END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped"; exit f != 0 }'
