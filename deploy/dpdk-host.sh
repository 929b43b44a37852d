#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What a host gives to transport dpdk, and what it lacks: huge pages, isolated CPUs, an IOMMU, NICs and their drivers.
# It looks, says what it would do, and does it only when it is told to; deploy/dpdk.md says why each is needed.
#
# Usage: dpdk-host.sh [show] [--json]           what there is; changes nothing
#        dpdk-host.sh plan WISH... [--force]    the commands for these wishes; changes nothing
#        dpdk-host.sh apply WISH... [--force]   runs them (root), and notes in the undo file how each is taken back
#        dpdk-host.sh undo                      takes back what the undo file notes, the last first (root)
#
# Wishes: --hugepages SIZE:COUNT[@NODE]    2M:1024 or 1G:8@0: so many pages in all, or on that NUMA node
#         --bind PCI=DRIVER                0000:3b:00.0=vfio-pci: a NIC leaves the kernel
#         --unbind PCI                     and comes back to it
#         --mtu INTERFACE=BYTES            of an interface that stays with the kernel
#         --isolate CPUS                   2-7,10: advice only, for the kernel's command line
#
# --force          also what would cut connections of this host, or takes huge pages away
# --undo-file FILE other than /var/lib/phub/dpdk-host.undo
# --root DIR       looks and writes below DIR, for tests: DIR/sys, DIR/proc and DIR/var as on a host, and in
#                  DIR/ip-address what `ip -o address` prints. No module is loaded, and nobody has to be root.
#
# Exit status: 0 done; 1 refused, or it failed; 2 wrong usage.
set -u
export LC_ALL=C
shopt -s nullglob extglob

ROOT=
UNDO=/var/lib/phub/dpdk-host.undo
WAIT_TENTHS=30 # for a driver to take a device
json='' force=''
hugepages=() binds=() unbinds=() mtus=() isolates=()

bold='' plain=''
if [[ -t 1 && -z ${NO_COLOR-} ]]; then
	bold=$'\e[1m' plain=$'\e[0m'
fi

usage() { # WORD...
	echo "dpdk-host.sh: $*; \`dpdk-host.sh --help\` lists what there is" >&2
	exit 2
}

fail() { # WORD...
	echo "dpdk-host.sh: $*" >&2
	exit 1
}

# shellcheck source=deploy/dpdk-host-show.sh
. "$(dirname "$(readlink -f "$0")")/dpdk-host-show.sh" || exit 1

# ---- plan ----

# A step: what is done, and what takes it back. Each is "VALUE>PATH", a write into a file of the kernel's, or "modprobe NAME";
# what needs several is several steps, and undo takes the last first.
steps=() undos=() refusals=() advice=()

step() { # DO UNDO
	steps+=("$1")
	undos+=("$2")
}

refuse() { # WORD...
	refusals+=("$*")
}

command_of() { # STEP; as it is typed
	local value=${1%%>*}

	[[ $1 == *">"* ]] || { echo "$1" && return; }
	echo "echo ${value:-''} >${1#*>}"
}

# KiB that the kernel could give, of the host or of a node: nodes do not count it, so the page cache is added up.
available_of() { # FOLDER OF A NODE or nothing
	local field sum=0

	if [[ -z $1 ]]; then
		kib_of /proc/meminfo MemAvailable
		return
	fi
	for field in MemFree "Active(file)" "Inactive(file)"; do
		sum=$((sum + $(kib_of "$1/meminfo" "$field") + 0))
	done
	echo $sum
}

plan_hugepages() { # SIZE:COUNT[@NODE]
	local wish=$1 node='' kib folder path now need have

	[[ $wish =~ ^(2M|1G):([0-9]{1,8})(@([0-9]{1,4}))?$ ]] || usage "--hugepages $wish: not like 2M:1024 or 1G:8@0"
	kib=$([[ ${BASH_REMATCH[1]} == 2M ]] && echo 2048 || echo 1048576)
	need=$((10#${BASH_REMATCH[2]})) node=${BASH_REMATCH[4]}
	folder=${node:+/sys/devices/system/node/node$((10#${node:-0}))}
	[[ -z $node || -d $ROOT$folder ]] || { refuse "--hugepages $wish: there is no NUMA node $node" && return; }
	[[ -n $node ]] && path=$folder/hugepages || path=/sys/kernel/mm/hugepages
	path+=/hugepages-${kib}kB/nr_hugepages
	if ! [[ -e $ROOT$path ]]; then
		refuse "--hugepages $wish: this kernel has no pages of that size ($path is not there)"
		return
	fi
	now=$(value "$path" 0)
	((now != need)) || return
	if ((need < now)) && [[ -z $force ]]; then
		refuse "--hugepages $wish: there are $now, and fewer would take them from others: wish for more, or --force"
	fi
	have=$(available_of "$folder")
	if (((need - now) * kib > ${have:-0})); then
		refuse "--hugepages $wish: that is $(size_name $(((need - now) * kib))) more, and $(size_name "${have:-0}") are free${node:+ on node $node}:" \
			"wish for fewer, or reserve them on the kernel's command line"
	fi
	step "$need>$path" "$now>$path"
	if [[ -z $node ]]; then
		advice+=("to keep it: hugepagesz=${wish%%:*} hugepages=$need on the kernel's command line, or in /etc/dpdk/dpdk.conf" \
			"    NR_${wish%%:*}_PAGES=$need")
	else
		advice+=("to keep it: NR_${wish%%:*}_PAGES in /etc/dpdk/dpdk.conf, a number for each node")
	fi
}

pci_check() { # OPTION PCI
	[[ $2 =~ ^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$ ]] || usage "$1 $2: not a PCI address like 0000:3b:00.0"
	if ! [[ -d $ROOT/sys/bus/pci/devices/$2 ]]; then
		refuse "$1 $2: there is no such PCI device; \`dpdk-host.sh show\` lists the NICs"
		return 1
	fi
	[[ $(value "/sys/bus/pci/devices/$2/class") == 0x02* ]] || { refuse "$1 $2: that is no NIC" && return 1; }
}

# Who shares the IOMMU group must be bound alike, or be free of drivers; bridges may stay.
group_check() { # PCI
	local other name driver bind

	for other in "$ROOT/sys/bus/pci/devices/$1"/iommu_group/devices/*; do
		name=${other##*/}
		driver=$(link_name "/sys/bus/pci/devices/$name/driver")
		[[ $name == "$1" || $driver == "" || $driver == vfio-pci ]] && continue
		[[ $(value "/sys/bus/pci/devices/$name/class") == 0x0604* ]] && continue
		for bind in "${binds[@]}"; do
			[[ $bind != "$name="* ]] || continue 2
		done
		refuse "--bind $1: $name ($driver) is in the same IOMMU group: bind it too"
	done
}

plan_bind() { # PCI=DRIVER
	local pci=${1%%=*} driver=${1#*=} path now override use

	[[ $1 == *=* ]] || usage "--bind $1: not like 0000:3b:00.0=vfio-pci"
	[[ $driver == @(vfio-pci|uio_pci_generic|igb_uio) ]] ||
		usage "--bind $1: the driver is one of vfio-pci, uio_pci_generic, igb_uio; --unbind gives a NIC back to the kernel"
	pci_check --bind "$pci" || return
	path=/sys/bus/pci/devices/$pci
	now=$(link_name "$path/driver")
	[[ $now != "$driver" ]] || return
	if [[ $(pmd_of "$now") == *" kernel "* ]]; then
		refuse "--bind $1: DPDK drives it through $now, which it must keep: name it in dpdk_ports as it is"
		return
	fi
	while read -r use; do
		[[ -n $use ]] || continue
		[[ -n $force ]] || refuse "--bind $1: $use: choose another NIC, move that elsewhere, or --force"
		advice+=("ends by --force, and undo does not bring it back: $use")
	done < <(uses_of "$pci")
	if [[ $driver == vfio-pci ]]; then
		if ! [[ -e $ROOT$path/iommu_group ]] && ! noiommu; then
			refuse "--bind $1: there is no IOMMU for it: intel_iommu=on iommu=pt on the kernel's command line, and VT-d or" \
				"AMD-Vi on in the firmware"
		fi
		group_check "$pci"
	fi
	[[ -d $ROOT/sys/bus/pci/drivers/$driver ]] || step "modprobe $driver" ""
	override=$(value "$path/driver_override")
	[[ $override != "(null)" ]] || override=
	# Undone from the last to the first: no override, off, and to the driver that it had.
	step "" "${now:+$pci>/sys/bus/pci/drivers/$now/bind}"
	[[ -z $now ]] || step "$pci>$path/driver/unbind" ""
	step "$driver>$path/driver_override" "$pci>$path/driver/unbind"
	step "$pci>/sys/bus/pci/drivers_probe" "$override>$path/driver_override"
	advice+=("to keep it: \"pci $pci $driver\" in /etc/dpdk/interfaces")
}

plan_unbind() { # PCI
	local path=/sys/bus/pci/devices/$1 now

	pci_check --unbind "$1" || return
	now=$(link_name "$path/driver")
	[[ $now == @(vfio-pci|uio_pci_generic|igb_uio) ]] || return
	step "" "$1>/sys/bus/pci/drivers_probe"
	step "$1>$path/driver/unbind" "$now>$path/driver_override"
	step ">$path/driver_override" ""
	step "$1>/sys/bus/pci/drivers_probe" "$1>$path/driver/unbind"
}

plan_mtu() { # INTERFACE=BYTES
	local interface=${1%%=*} bytes=${1#*=} now bind name

	[[ $1 =~ ^[^/=]{1,15}=[0-9]{2,5}$ ]] || usage "--mtu $1: not like eth2=9000"
	if ! [[ -e $ROOT/sys/class/net/$interface/mtu ]]; then
		refuse "--mtu $1: there is no interface $interface"
		return
	fi
	for bind in "${binds[@]}"; do
		for name in $(interfaces_of "${bind%%=*}"); do
			[[ $name != "$interface" ]] ||
				refuse "--mtu $1: --bind $bind takes that interface away; phubd sets the MTU of such a NIC (mtu= in dpdk_ports)"
		done
	done
	now=$(value "/sys/class/net/$interface/mtu")
	[[ $now != "$((10#$bytes))" ]] || return
	step "$((10#$bytes))>/sys/class/net/$interface/mtu" "$now>/sys/class/net/$interface/mtu"
	advice+=("to keep it: the MTU of $interface where the interface is brought up; switches need as much")
}

plan_isolate() { # CPUS
	local wished online outside others

	[[ $1 =~ ^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$ ]] || usage "--isolate $1: not like 2-7,10"
	wished=$(cpus_of "$1" | list_of)
	[[ -n $wished ]] || usage "--isolate $1: not like 2-7,10"
	online=$(value /sys/devices/system/cpu/online)
	outside=$(grep -vxFf <(cpus_of "$online") <(cpus_of "$wished") | list_of)
	others=$(grep -vxFf <(cpus_of "$wished") <(cpus_of "$online") | list_of)
	if [[ -n $outside ]]; then
		refuse "--isolate $1: CPUs $outside are not there; online are $online"
	elif [[ -z $others ]]; then
		refuse "--isolate $1: no CPU is left for all else; leave at least one out"
	else
		advice+=("to isolate CPUs $wished, on the kernel's command line, and reboot:"
			"    isolcpus=$wished nohz_full=$wished rcu_nocbs=$wished irqaffinity=$others"
			"  and in phubd.yaml, cores: [${wished//,/, }]; in its unit CPUAffinity=$online")
		if cpus_of "$wished" | grep -qx 0; then
			advice+=("warning: leave CPU 0 out of --isolate $1: the kernel keeps work and its own clock there")
		fi
	fi
}

plan() {
	local wish line

	((${#hugepages[@]} + ${#binds[@]} + ${#unbinds[@]} + ${#mtus[@]} + ${#isolates[@]})) ||
		usage "no wish: --hugepages, --bind, --unbind, --mtu or --isolate"
	for wish in "${hugepages[@]}"; do plan_hugepages "$wish"; done
	for wish in "${unbinds[@]}"; do plan_unbind "$wish"; done
	for wish in "${binds[@]}"; do plan_bind "$wish"; done
	for wish in "${mtus[@]}"; do plan_mtu "$wish"; done
	for wish in "${isolates[@]}"; do plan_isolate "$wish"; done
	((${#refusals[@]} == 0)) || {
		printf 'dpdk-host.sh: %s\n' "${refusals[@]}" >&2
		echo "dpdk-host.sh: nothing was changed" >&2
		exit 1
	}
}

print_advice() {
	local line

	for line in "${advice[@]}"; do
		echo "# $line"
	done
}

plan_show() {
	local line count=0

	for line in "${steps[@]}"; do
		[[ -z $line ]] || { command_of "$line" && count=$((count + 1)); }
	done
	((count)) || echo "# nothing to do: it is as wished"
	print_advice
}

# ---- apply and undo ----

need_root() {
	[[ -n $ROOT || $EUID == 0 ]] || fail "this writes what only root may: run it with sudo"
}

driver_wait() { # PCI [gone]; prints the driver that took it within the time; or waits until it has none
	local i driver

	for ((i = 0; i < WAIT_TENTHS; i++)); do
		driver=$(link_name "/sys/bus/pci/devices/$1/driver")
		[[ -n $driver ]] && [[ -z ${2-} ]] && break
		[[ -z $driver ]] && [[ -n ${2-} ]] && break
		sleep 0.1
	done
	echo "$driver"
}

# Is it what was written? The kernel gives fewer huge pages than it was asked for without a word.
verify() { # VALUE PATH
	local is pci driver wanted=

	case $2 in
	*/nr_hugepages)
		is=$(value "$2")
		[[ $is == "$1" ]] || {
			echo "the kernel gave $is of $1: its memory is too fragmented; reserve them on the kernel's command line"
			return 1
		} ;;
	*/driver/unbind)
		driver=$(driver_wait "$1" gone)
		[[ -z $driver ]] || {
			echo "$1 still has $driver: end what uses it (lsof /dev/vfio/*)"
			return 1
		} ;;
	*/drivers_probe | */drivers/*/bind)
		pci=$1
		driver=$(driver_wait "$pci")
		if [[ $2 == */bind ]]; then
			wanted=${2%/bind} wanted=${wanted##*/}
		else
			wanted=$(value "/sys/bus/pci/devices/$pci/driver_override")
			[[ $wanted != "(null)" ]] || wanted=
		fi
		if [[ -z $driver || ${wanted:-$driver} != "$driver" ]]; then
			echo "$pci has ${driver:-no driver} now${wanted:+, not $wanted}: \`dmesg | tail\` says why"
			return 1
		fi ;;
	esac
}

run_step() { # STEP
	local value=${1%%>*} path=${1#*>} why

	printf '%s' "$(command_of "$1")"
	if [[ $1 == modprobe* ]]; then
		if [[ -n $ROOT ]]; then
			echo "  # left out: --root"
			return
		fi
		why=$(modprobe "${1#* }" 2>&1) && echo "  # done" && return
	elif [[ $path == */driver/unbind && ! -L $ROOT${path%/unbind} ]]; then
		echo "  # left out: it has no driver"
		return
	elif [[ $path == */bind && $path == */$(link_name "/sys/bus/pci/devices/$value/driver")/bind ]]; then
		echo "  # left out: it has it"
		return
	elif why=$( (echo "$value" >"$ROOT$path") 2>&1) && why=$(verify "$value" "$path"); then
		echo "  # done"
		return
	fi
	echo "  # failed"
	echo "dpdk-host.sh: ${why##*: line +([0-9]): }" >&2
	return 1
}

apply() {
	local i

	need_root
	mkdir -p "$(dirname "$ROOT$UNDO")" || fail "no place for $UNDO: name another with --undo-file"
	if ! [[ -s $ROOT$UNDO ]]; then
		echo "# What takes back dpdk-host.sh apply, the last line first; dpdk-host.sh undo does it." >"$ROOT$UNDO" ||
			fail "$UNDO cannot be written: name another file with --undo-file"
	fi
	for ((i = 0; i < ${#steps[@]}; i++)); do
		# Noted before it is done: what ends half-way can be undone.
		[[ -z ${undos[i]} ]] || command_of "${undos[i]}" >>"$ROOT$UNDO"
		[[ -z ${steps[i]} ]] || run_step "${steps[i]}" || fail "stopped here; \`dpdk-host.sh undo\` takes back what was done"
	done
	((${#steps[@]})) && echo "# $UNDO says how to undo it" || echo "# nothing to do: it is as wished"
	print_advice
}

undo() {
	local lines line i value path

	need_root
	[[ -s $ROOT$UNDO ]] || fail "there is nothing to undo: $UNDO is not there"
	mapfile -t lines <"$ROOT$UNDO"
	for ((i = ${#lines[@]} - 1; i >= 0; i--)); do
		line=${lines[i]}
		[[ $line == "#"* || -z $line ]] && continue
		# It is read, not run: only writes of plain words below /sys.
		[[ $line =~ ^echo\ (\'\'|[A-Za-z0-9:._-]+)\ \>(/sys/[A-Za-z0-9:._/@-]+)$ && $line != *..* ]] ||
			fail "$UNDO, line $((i + 1)): not of mine: $line"
		value=${BASH_REMATCH[1]} path=${BASH_REMATCH[2]}
		[[ $value != "''" ]] || value=
		run_step "$value>$path" || {
			printf '%s\n' "${lines[@]:0:i+1}" >"$ROOT$UNDO"
			fail "stopped here; what is left stays in $UNDO"
		}
	done
	rm -f "$ROOT$UNDO"
}

# ---- the command line ----

verb=
while (($#)); do
	case $1 in
	show | plan | apply | undo)
		[[ -z $verb ]] || usage "$verb and $1: one at a time"
		verb=$1 ;;
	--json) json=yes ;;
	--force) force=yes ;;
	-h | --help)
		sed -n '3,/^set -u/{/^#/s/^# \{0,1\}//p}' "$0"
		exit 0 ;;
	--hugepages | --bind | --unbind | --mtu | --isolate | --root | --undo-file)
		[[ -n ${2-} && $2 != --* ]] || usage "$1 needs a value"
		case $1 in
		--hugepages) hugepages+=("$2") ;;
		--bind) binds+=("$2") ;;
		--unbind) unbinds+=("$2") ;;
		--mtu) mtus+=("$2") ;;
		--isolate) isolates+=("$2") ;;
		--root) ROOT=${2%/} ;;
		--undo-file) UNDO=$2 ;;
		esac
		shift ;;
	*) usage "\"$1\" is neither show, plan, apply, undo nor a wish" ;;
	esac
	shift
done
verb=${verb:-show}
[[ -z $ROOT || -d $ROOT/sys ]] || fail "--root $ROOT: there is no $ROOT/sys"
wishes=$((${#hugepages[@]} + ${#binds[@]} + ${#unbinds[@]} + ${#mtus[@]} + ${#isolates[@]}))
[[ -z $json || $verb == show ]] || usage "--json is for show"
[[ $verb == @(plan|apply) || $wishes == 0 ]] || usage "wishes are for plan and apply, not $verb"

addresses_read
ssh_list=$(ssh_addresses)
ssh6_list=$(ssh6_interfaces)
case $verb in
show)
	if [[ -n $json ]]; then
		show_json
	else
		show_host
		show_nics
	fi ;;
plan) plan && plan_show ;;
apply) plan && apply ;;
undo) undo ;;
esac
