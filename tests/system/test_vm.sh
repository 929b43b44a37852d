#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The virtual machine that RDMA tests run in where there is no device (tests/vm): what the tests rely on that it does. Both
# kinds of machine; a kind that cannot be had here is skipped. Speaks TAP.
#
# machines: that is what it tries
#
# Usage: tests/system/test_vm.sh [WORD...]    only those whose name holds one of the words
set -u
cd "$(dirname "$0")/../.." || exit 1

scratch=$(mktemp -d)
export TMPDIR=$scratch
trap 'rm -rf "$scratch"' EXIT
words=("$@")
number=0
build=$PWD/${BUILD:-build}

# A check prints nothing when all is well, else what is wrong.
check() { # NAME FUNCTION ARGUMENT...
	local name=$1 word wrong chosen=${#words[@]}

	for word in "${words[@]}"; do
		[[ $name != *"$word"* ]] || chosen=0
	done
	((chosen == 0)) || return 0
	((++number))
	shift
	wrong=$("$@" 2>&1)
	if [[ -z $wrong ]]; then
		echo "ok $number - $name"
	else
		echo "not ok $number - $name"
		printf '# %s\n' "${wrong//$'\n'/$'\n# '}"
	fi
}

skip() { # NAME REASON
	echo "ok $((++number)) - $1 # SKIP $2"
}

vm() { # OPTION... -- COMMAND...
	tests/vm/run.sh "${kind[@]}" -d / "$@"
}

expect() { # WHAT WANTED FOUND
	[[ $2 == "$3" ]] || printf '%s: wanted "%s", found "%s"\n' "$1" "$2" "$3"
}

passes_through() {
	# shellcheck disable=SC2016 # the guest's shell expands it
	PHUB_WORD="two words" vm -e PHUB_WORD -- bash -c 'printf "%s\r\n\0" "$PHUB_WORD"; echo err >&2; exit 3' \
		>"$scratch/out" 2>"$scratch/err"
	expect status 3 $?
	printf 'two words\r\n\0' | cmp - "$scratch/out"
	expect stderr err "$(<"$scratch/err")"
	vm -- sh -c 'kill -SEGV $$' 2>/dev/null
	expect "status of a crash" 139 $?
}

has_devices() {
	local found

	found=$(vm -w 5 -- sh -c 'grep -l ACTIVE /sys/class/infiniband/*/ports/1/state | cut -d/ -f5; ibv_devinfo | grep -c PORT_ACTIVE')
	expect "devices of -w 5" "node1 node2 node3 node4 node5 5" "${found//$'\n'/ }"
	expect "device of a plain run" rxe0 "$(vm -- ls /sys/class/infiniband)"
	expect "devices of -i 0" "" "$(vm -i 0 -- ls /sys/class/infiniband)"
}

throws_away() {
	mkdir "$scratch/kept"
	vm -r "$scratch/kept" -- sh -c "echo new >$scratch/kept/file; echo new >$scratch/lost; cat $scratch/lost" >"$scratch/out"
	expect "what the guest wrote and read" new "$(<"$scratch/out")"
	expect "the file below -r" new "$(cat "$scratch/kept/file")"
	[[ ! -e $scratch/lost ]] || echo "what the guest wrote outside -r is there"
	rm -r "$scratch/kept"
}

# Registering 1 MiB as nobody: 64 KiB is not enough, "unlimited" is; then it waits for a client.
limits_memory() {
	local nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups timeout 3 ibv_rc_pingpong -g 1 -s 1048576) found

	found=$(vm -l 64 -- "${nobody[@]}" 2>&1)
	[[ $found == *"register MR"* ]] || echo "ulimit -l 64 did not limit: $found"
	found=$(vm -- "${nobody[@]}" 2>&1)
	expect "unlimited" 124 $?
	[[ $found != *"register MR"* ]] || echo "without a limit: $found"
}

ends_in_time() {
	local begin=$SECONDS

	vm -t 3 -- sleep 100 2>/dev/null
	expect "status" 124 $?
	((SECONDS - begin < 20)) || echo "it took $((SECONDS - begin)) s"
}

# Of a session of its own, so that all its processes are known.
leaves_nothing() { # SIGNAL
	local leader tries

	setsid tests/vm/run.sh "${kind[@]}" -r "$scratch" -- sh -c "echo >$scratch/up; sleep 100" >/dev/null 2>&1 &
	leader=$!
	for ((tries = 0; tries < 300 && ! $(find "$scratch/up" 2>/dev/null | wc -l); tries++)); do
		sleep 0.1
	done
	rm "$scratch/up" || echo "the guest did not come up"
	kill "-$1" $leader
	wait $leader
	for ((tries = 0; tries < 100; tries++)); do
		[[ -n $(ps -o pid= -s $leader) ]] || break
		sleep 0.1
	done
	ps -o pid=,args= -s $leader && pkill -KILL -s $leader
	[[ $1 == KILL ]] || find "$scratch" -name 'phub-vm.*'
	rm -rf "$scratch"/phub-vm.*
}

# Two at once make one; one that breaks or is killed leaves nothing that looks whole.
makes_once() {
	export PHUB_VM_CACHE=$scratch/cache
	# shellcheck disable=SC2016 # a shell of its own expands it
	local script='. tests/vm/common.sh; make() { echo made >&2; sleep "$1"; echo >file; }; cached'

	: >"$scratch/made"
	bash -euc "$script 1 make" 2>>"$scratch/made" >"$scratch/first" &
	bash -euc "$script 1 make" 2>>"$scratch/made" >"$scratch/second"
	wait $!
	expect "times that it was made" 1 "$(grep -c made "$scratch/made")"
	expect "what both print" "$scratch/cache/1 $scratch/cache/1" "$(cat "$scratch/first") $(cat "$scratch/second")"
	bash -euc "$script bad make" >/dev/null 2>&1 && echo "a maker that breaks is no error"
	timeout -s KILL 0.5 bash -euc "$script 3 make" >/dev/null 2>&1
	expect "what is there" "1" "$(find "$PHUB_VM_CACHE" -mindepth 1 -maxdepth 1 ! -name '*.lock' ! -name '*.part' -printf '%f')"
}

# Two guests, two ends of a cable.
has_cable() {
	local cable=$scratch/cable server

	vm -N "$cable.a,$cable.b" -a 10.77.0.1/24 -- ibv_rc_pingpong -e -g 1 -n 100 >"$scratch/server" 2>&1 &
	server=$!
	vm -N "$cable.b,$cable.a" -a 10.77.0.2/24 -- bash -c 'for i in {1..60}; do
		ibv_rc_pingpong -e -g 1 -n 100 10.77.0.1 2>/dev/null && exit; sleep 0.5; done; exit 1' >"$scratch/client"
	expect "client" 0 $?
	wait $server
	expect "server" 0 $?
}

waits() { # FILE PATTERN: until a line of it matches; a guest's end is a matter of its -t
	local tries

	for ((tries = 0; tries < 600; tries++)); do
		grep -q "$2" "$1" 2>/dev/null && return
		sleep 0.1
	done
	echo "no /$2/ in ${1##*/}: $(tail -n 5 "$1")"
	return 1
}

# phubd in one guest, at one end of a cable with IPv6 addresses only. Not by vm(): what is killed is to be the guest itself.
box_guest() { # CABLE
	PHUB_SECRET=shared tests/vm/run.sh "${kind[@]}" -d / -N "$1.a,$1.b" -a fd77::1/64 -e PHUB_SECRET -- "$build/phubd" \
		-o "listen=[fd77::1]:7000" -o transports=verbs -o create=secret -o create_secret_env=PHUB_SECRET -o cores=1 \
		-o heartbeat_ms=500 -o warn_ms=2000 -o lost_ms=5000 >"$scratch/box" 2>"$scratch/box.log" &
	box=$!
}

# Two workers in the other: they exchange for some rounds, or until they are told, which they never are.
worker_guest() { # CABLE ROUNDS
	: >"$scratch/workers" # what the last ones said
	# shellcheck disable=SC2016 # the guest's shell expands it
	PHUB_SECRET=shared tests/vm/run.sh "${kind[@]}" -d / -N "$1.b,$1.a" -a fd77::2/64 -e PHUB_SECRET -- bash -c 'mkfifo /tmp/never
		for rank in 0 1; do
			"$0" url=phub://[fd77::1]:7000/guests world=2 transport=verbs keys=a:30000,b:70,c:9000 rank=$rank \
				rounds="$1" report_ms=100 wait_ms=20000 <>/tmp/never &
		done
		wait' "$build/tests/system/worker" "$2" >"$scratch/workers" 2>&1 &
	workers=$!
}

# Whoever is left says within lost_ms, and some time to emulate it, whom it lost; the job's end is an error that says so too.
exchanges() {
	local cable=$scratch/exchange box workers begin

	box_guest "$cable"
	worker_guest "$cable" 4
	waits "$scratch/box" "listening on .fd77::1.:7000" || return
	wait "$workers"
	expect "workers with exact sums" 2 "$(grep -c '"event":"end".*"rc":0,.*"rounds":4,"wrong":0,' "$scratch/workers")"
	worker_guest "$cable" until-told
	waits "$scratch/workers" '"progress"' || return
	kill -KILL "$workers"
	begin=$SECONDS
	waits "$scratch/box.log" 'rank [01] ([^ ]*fd77::2[^ ]*) was lost: ' || return
	((SECONDS - begin < 15)) || echo "the box took $((SECONDS - begin)) s"
	worker_guest "$cable" until-told
	waits "$scratch/workers" '"progress"' || return
	kill -KILL "$box"
	begin=$SECONDS
	waits "$scratch/workers" '"event":"end"' || return
	((SECONDS - begin < 15)) || echo "the workers took $((SECONDS - begin)) s"
	wait "$workers"
	expect "workers that name the box" 2 "$(grep -c '"event":"end".*"rc":-.*box .fd77::1.:7000' "$scratch/workers")"
	expect "sums that were wrong" 0 "$(grep '"event":"end"' "$scratch/workers" | grep -vc '"wrong":0')"
}

available() { # WORD MAKER
	local reason

	reason=$("$2" 2>&1) && return
	skip "$1" "$(tail -n 1 <<<"$reason")"
	return 1
}

check "a kernel is made once" makes_once
kind=(-U)
if available "user-mode Linux" tests/vm/uml.sh; then
	check "output, environment and exit status pass through" passes_through
	check "devices come up" has_devices
	check "what is written is thrown away, but for -r" throws_away
	check "ulimit -l holds for who is not root" limits_memory
	check "the time limit holds" ends_in_time
	check "nothing is left of a killed runner (TERM)" leaves_nothing TERM
	check "nothing is left of a killed runner (KILL)" leaves_nothing KILL
fi
# It is ten times slower; what both kinds share was seen above.
kind=(-c 1)
if available qemu tests/vm/debian.sh; then
	check "qemu: output, environment and exit status pass through" passes_through
	check "qemu: nothing is left of a killed runner (TERM)" leaves_nothing TERM
	check "qemu: a cable between two guests" has_cable
	check "qemu: an exchange between two guests over IPv6 alone, either of which is killed" exchanges
fi
echo "1..$number"
