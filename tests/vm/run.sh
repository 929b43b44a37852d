#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs COMMAND in a virtual machine that has RDMA devices (rdma_rxe: the kernel's own verbs over Ethernet), in this
# machine's root file system; what it writes is thrown away, but for what is below the -r folders. Prints the command's
# output and returns its exit status; 124 when time was up, 125 when the machine itself failed, 77 when it cannot be had
# here. Needs neither root nor KVM, and no network.
#
# Usage: tests/vm/run.sh [OPTION...] [--] COMMAND [ARGUMENT...]
#   -U            user-mode Linux instead of Debian's kernel in qemu: native speed, up in a second, one CPU. Code under the
#                 address or thread sanitizer finds no room in its 39 bits of addresses; the undefined one's runs
#   -c CPUS       qemu's (2)               -m MIB   memory (1024)
#   -t SECONDS    time limit (120)         -l KIB   ulimit -l (unlimited)
#   -d FOLDER     where COMMAND runs (.)   -r PATH  a folder that it may write; may be given again
#   -w NODES      devices node1..nodeN with addresses 10.81.0.1..N, all on one bridge: bN is the switch's port of nodeN
#   -i ADDRESSES  else one device, rxe0, with addresses 10.77.0.1..N (5); 0: none, COMMAND sets up its own
#   -N A,B        else rxe0 on a cable to another guest: this end is the Unix socket A, the other guest's is B (qemu only)
#   -a ADDRESS    that end's address (10.77.0.1/24), IPv4 or IPv6
#   -M MTU        of the Ethernet devices (4200, for an RDMA MTU of 4096)
#   -s FILE       sourced in the guest, as root, before COMMAND
#   -e VARIABLE   of the environment to hand over; may be given again. PATH, HOME, LANG and TERM always are
#   -k            keep the folder of this run and name it     -v   the kernel's messages on stderr, at the end
#
# qemu emulates: 10 to 25 times slower than native, but with real CPUs for races, sanitizers, huge pages, and two guests.
# Reads PHUB_VM_CACHE (~/.cache/phub-vm), where kernels are kept; PHUB_VM_KERNEL, see debian.sh; PHUB_VM_APPEND, more words
# for the kernel's command line.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
. "$here/common.sh"

usage() {
	sed -n '/^# Usage/,/^#$/s/^# \{0,1\}//p' "$0"
}

wrong() {
	usage >&2
	exit 2
}

if [[ ${1-} == --help || ${1-} == -h ]]; then
	usage
	exit 0
fi

cpus=2 memory=1024 limit=120 directory=$PWD memlock=unlimited uml='' nodes=0 addresses=5 cable='' address=10.77.0.1/24
mtu=4200 setup='' keep='' verbose='' writable=() variables=(PATH HOME LANG TERM)
while getopts Uc:m:t:l:d:r:w:i:N:a:M:s:e:kv option; do
	case $option in
	U) uml=1 ;;
	c) cpus=$OPTARG ;;
	m) memory=$OPTARG ;;
	t) limit=$OPTARG ;;
	l) memlock=$OPTARG ;;
	d) directory=$(realpath "$OPTARG") ;;
	r) writable+=("$(realpath "$OPTARG")") ;;
	w) nodes=$OPTARG ;;
	i) addresses=$OPTARG ;;
	N) cable=$OPTARG ;;
	a) address=$OPTARG ;;
	M) mtu=$OPTARG ;;
	s) setup=$(realpath "$OPTARG") ;;
	e) variables+=("$OPTARG") ;;
	k) keep=1 ;;
	v) verbose=1 ;;
	*) wrong ;;
	esac
done
shift $((OPTIND - 1))
(($#)) || wrong
need ip rdma busybox cpio setpriv
if [[ -n $uml ]]; then
	[[ -z $cable ]] || die 2 "-N needs qemu"
	kernel=$("$here/uml.sh")
	arguments=(vm.uml=1)
else
	need qemu-system-x86_64 taskset
	kernel=$("$here/debian.sh")
	arguments=("vm.kernel=$kernel" "vm.release=$(<"$kernel/release")")
fi

run=$(mktemp -d "${TMPDIR:-/tmp}/phub-vm.XXXXXX")
control=$run/control
job=
# shellcheck disable=SC2317 # the trap calls it
finish() {
	if [[ -n $keep ]]; then
		echo "vm: kept $run" >&2
	else
		rm -rf "$run"
	fi
}
trap finish EXIT
# shellcheck disable=SC2154 # job is set where it starts
trap '[[ -z $job ]] || { kill $job 2>/dev/null; wait $job || :; }; exit 143' INT TERM HUP
arguments+=("vm.control=$control" panic=-1 printk.devkmsg=on "$([[ -n $verbose ]] && echo loglevel=7 || echo quiet)")
read -ra more <<<"${PHUB_VM_APPEND:-}"
arguments+=("${more[@]}")

# What the guest reads.
mkdir "$control"
cp "$here/guest.sh" "$control/"
printf '%q ' "$@" >"$control/command"
for name in "${variables[@]}"; do
	[[ -z ${!name+set} ]] || printf '%s=%q\n' "$name" "${!name}"
done >"$control/environment"
printf '%s=%q\n' uml "$uml" directory "$directory" memlock "$memlock" addresses "$addresses" nodes "$nodes" mtu "$mtu" \
	cable "${cable:+$address}" setup "$setup" >"$control/settings"
for i in "${!writable[@]}"; do
	echo "writable$i ${writable[i]}"
done >"$control/shares"

# The initial file system: busybox, init.sh and the modules that they need.
pack() {
	local root=$run/root

	mkdir -p "$root"/{bin,proc,sys,dev,new,ro,rw}
	cp "$(command -v busybox)" "$root/bin/busybox"
	ln -s busybox "$root/bin/sh"
	install -m 755 "$here/init.sh" "$root/init"
	[[ -n $uml ]] || cp -r "$kernel/modules" "$root/"
	(cd "$root" && find . | cpio -o -H newc --quiet) >"$run/initrd"
	rm -rf "$root"
}

# Whoever kills this script in whatever way takes the guest along.
limited() { # COMMAND...
	exec setpriv --pdeathsig TERM timeout -k 5 "$limit" "$@"
}

launch_uml() {
	local folder=${TMPDIR:-/tmp}

	# Memory is a file that is mapped executable.
	if (($(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1) > memory * 1024 + 65536)) &&
		! grep -q '^[^ ]* /dev/shm [^ ]* [^ ]*noexec' /proc/mounts; then
		folder=/dev/shm
	fi
	TMPDIR=$folder limited "$kernel/linux" mem="${memory}M" initrd="$run/initrd" con0=null,fd:5 con1=null,fd:3 \
		con2=null,fd:4 con=null ssl=null uml_dir="$run" umid=uml "${arguments[@]}"
}

launch_qemu() {
	# shellcheck disable=SC2054 # qemu's commas
	local qemu=(qemu-system-x86_64 -name phub-vm,debug-threads=on -nodefaults -no-user-config -nographic -no-reboot
		-pidfile "$run/pid" -M q35 -accel tcg,thread=multi,tb-size=512 -cpu max -smp "$cpus" -m "$memory"
		-kernel "$kernel/vmlinux" -initrd "$run/initrd"
		-append "console=ttyS0 nokaslr cryptomgr.notests mitigations=off tsc=reliable no_timer_check ${arguments[*]}"
		-serial "file:$run/console" -device virtio-serial-pci
		-add-fd fd=3,set=1 -chardev file,id=out,path=/dev/fdset/1,append=on -device virtserialport,chardev=out,name=out
		-add-fd fd=4,set=2 -chardev file,id=err,path=/dev/fdset/2,append=on -device virtserialport,chardev=err,name=err)
	local tag path rest

	while read -r tag path rest; do
		qemu+=(-fsdev "local,id=$tag,path=$path,security_model=none,multidevs=remap$rest"
			-device "virtio-9p-pci,fsdev=$tag,mount_tag=$tag")
	done < <(echo "root / ,readonly=on"; echo "control $control"; cat "$control/shares")
	[[ -z $cable ]] || qemu+=(
		-netdev "dgram,id=cable,local.type=unix,local.path=${cable%,*},remote.type=unix,remote.path=${cable#*,}"
		-device "virtio-net-pci,netdev=cable,mac=$(printf '52:54:00:00:%02x:%02x' $(($$ >> 8 & 255)) $(($$ & 255))),romfile="
	)
	limited "${qemu[@]}"
}

# Each virtual CPU gets a CPU of its own: where both threads are packed on one, every interrupt between them costs a time
# slice, and all is up to ten times slower.
pin() {
	local tries=0 allowed task number

	mapfile -t allowed < <(taskset -pc $$ | sed 's/.*: //' | tr , '\n' | while IFS=- read -r a b; do seq "$a" "${b:-$a}"; done)
	((${#allowed[@]} > 1 && cpus > 1)) || return 0
	until grep -qs "^CPU $((cpus - 1))/TCG" "/proc/$(cat "$run/pid" 2>/dev/null)/task/"*/comm; do
		kill -0 "$job" 2>/dev/null && ((++tries < 100)) || return 0
		sleep 0.02
	done
	for task in "/proc/$(<"$run/pid")/task/"*; do
		number=$(sed -n 's:^CPU \([0-9]*\)/TCG:\1:p' "$task/comm" 2>/dev/null) || continue
		[[ -z $number ]] || taskset -pc "${allowed[number % ${#allowed[@]}]}" "${task##*/}" >/dev/null
	done
}

pack
if [[ -n $uml ]]; then
	launch_uml 3>&1 4>&2 5>"$run/console" </dev/null >"$run/log" 2>&1 &
	job=$!
else
	launch_qemu 3>&1 4>&2 </dev/null >"$run/log" 2>&1 &
	job=$!
	pin
fi
status=0
# On a busy machine user-mode Linux may abort when all is done and "System halted" said (3 runs of 126). What counts is the
# status that the guest left; the shell need not say more.
wait $job 2>/dev/null || status=$?
[[ -z $verbose ]] || cat "$run/console" >&2
[[ ! -s $control/status ]] || exit "$(<"$control/status")"
if ((status == 124 || status == 137)); then
	echo "vm: time limit of $limit s" >&2
	exit 124
fi
echo "vm: the guest failed ($status)" >&2
cat "$run/log" >&2
tail -n 40 "$run/console" >&2 || :
exit 125
