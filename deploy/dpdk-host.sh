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

# ---- what there is ----

value() { # PATH [OTHERWISE]; the first line of a file
	local line=

	{ read -r line <"$ROOT$1"; } 2>/dev/null
	echo "${line:-${2-}}"
}

link_name() { # PATH; what a link leads to, without its folders
	local to

	to=$(readlink "$ROOT$1") && echo "${to##*/}"
}

kib_of() { # MEMINFO FIELD
	awk -v f="$2:" '{ for (i = 1; i < NF; i++) if ($i == f) { print $(i + 1); exit } }' "$ROOT$1" 2>/dev/null
}

size_name() { # KIB
	if (($1 >= 1048576)); then
		echo "$(($1 / 1048576)) GiB"
	elif (($1 >= 1024)); then
		echo "$(($1 / 1024)) MiB"
	else
		echo "$1 KiB"
	fi
}

# CPUs of a list like 0-3,8, one a line.
cpus_of() { # LIST
	local part first last

	for part in ${1//,/ }; do
		first=${part%-*} last=${part#*-}
		for ((; first <= last; first++)); do
			echo "$first"
		done
	done
}

# The same CPUs as a list like 0-3,8.
list_of() { # CPUs on stdin
	sort -nu | awk 'function out() { if (n) r = r (r == "" ? "" : ",") a (a == b ? "" : "-" b) }
		{ if (n && $1 == b + 1) b = $1; else { out(); a = b = $1; n = 1 } } END { out(); print r }'
}

nics() { # PCI addresses of network devices
	local device

	for device in "$ROOT"/sys/bus/pci/devices/*; do
		[[ $(value "${device#"$ROOT"}/class") == 0x02* ]] && echo "${device##*/}"
	done
}

interfaces_of() { # PCI; virtio's are one folder below
	local path

	for path in "$ROOT/sys/bus/pci/devices/$1"/net/* "$ROOT/sys/bus/pci/devices/$1"/virtio*/net/*; do
		echo "${path##*/}"
	done
}

# An interface, and bonds, bridges and VLANs that are made of it.
stack_of() { # INTERFACE
	local upper

	echo "$1"
	for upper in "$ROOT/sys/class/net/$1"/upper_*; do
		stack_of "${upper##*/upper_}"
	done
}

# INTERFACE ADDRESS/PREFIX of all but link-local ones.
addresses=$'\n'
addresses_read() {
	local text

	if [[ -n $ROOT ]]; then
		text=$(cat "$ROOT/ip-address" 2>/dev/null)
	else
		text=$(PATH=$PATH:/usr/sbin:/sbin ip -o address show) || fail "\`ip\` is needed: apt-get install iproute2"
	fi
	addresses=$(awk '($3 == "inet" || $3 == "inet6") && $4 !~ /^fe80:/ { sub(/@.*/, "", $2); print $2, $4 }' <<<"$text")
}

addresses_of() { # INTERFACE
	awk -v i="$1" '$1 == i { print $2 }' <<<"$addresses"
}

has_default() { # INTERFACE
	awk -v i="$1" '$1 == i && $2 == "00000000" && $8 == "00000000" { found = 1 } END { exit !found }' \
		"$ROOT/proc/net/route" 2>/dev/null ||
		awk -v i="$1" '$10 == i && $1 $2 ~ /^0+$/ { found = 1 } END { exit !found }' "$ROOT/proc/net/ipv6_route" 2>/dev/null
}

# Addresses of this host that somebody is logged in over: of the shell above (sudo leaves it no SSH_CONNECTION, so its
# parents are asked), and those of all connections to port 22.
ssh_addresses() {
	local pid=$PPID stat words line hex

	[[ -z ${SSH_CONNECTION-} ]] || awk '{ print $3 }' <<<"$SSH_CONNECTION"
	while [[ $pid -gt 1 && -r $ROOT/proc/$pid/environ ]]; do
		tr '\0' '\n' <"$ROOT/proc/$pid/environ" 2>/dev/null | awk '/^SSH_CONNECTION=/ { print $3 }'
		stat=$(value "/proc/$pid/stat")
		read -ra words <<<"${stat##*) }"
		pid=${words[1]-0}
	done
	while read -r _ line _ stat _; do
		[[ $line == *:0016 && $stat == 01 ]] || continue
		hex=${line%:*}
		[[ ${#hex} == 32 && $hex != 0000000000000000FFFF0000* ]] && hex=
		hex=${hex: -8}
		[[ -z $hex ]] || echo "$((16#${hex:6:2})).$((16#${hex:4:2})).$((16#${hex:2:2})).$((16#${hex:0:2}))"
	done < <(cat "$ROOT/proc/net/tcp" "$ROOT/proc/net/tcp6" 2>/dev/null)
}

# Interfaces that hold an SSH connection over real IPv6: the kernel writes such addresses in two ways.
ssh6_interfaces() {
	local line stat hex word swapped

	while read -r _ line _ stat _; do
		[[ $line == *:0016 && $stat == 01 && ${#line} == 37 ]] || continue
		hex=${line%:*} swapped=
		for word in "${hex:0:8}" "${hex:8:8}" "${hex:16:8}" "${hex:24:8}"; do
			swapped+=${word:6:2}${word:4:2}${word:2:2}${word:0:2}
		done
		awk -v a="${swapped,,}" '$1 == a { print $6 }' "$ROOT/proc/net/if_inet6" 2>/dev/null
	done < <(cat "$ROOT/proc/net/tcp6" 2>/dev/null)
}

# What is lost when a NIC leaves the kernel, a line each; the first words say how bad it is.
ssh_list='' ssh6_list=''
uses_of() { # PCI
	local top interface address

	for top in $(interfaces_of "$1"); do
		for interface in $(stack_of "$top"); do
			[[ $interface == "$top" ]] || echo "$top is part of $interface"
			for address in $(addresses_of "$interface"); do
				if grep -qxF "${address%/*}" <<<"$ssh_list" || grep -qxF "$interface" <<<"$ssh6_list"; then
					echo "SSH connection over $interface ($address): binding it cuts you off"
				else
					echo "$interface has the address $address"
				fi
			done
			! has_default "$interface" || echo "$interface has the default route"
		done
	done
}

# How DPDK 22.11 meets what this kernel driver drives: PMD, how it is bound, steering by UDP port (deploy/dpdk.md).
pmd_of() { # DRIVER
	case $1 in
	mlx5_core) echo "mlx5 kernel flow" ;;
	mlx4_core) echo "mlx4 kernel unread" ;;
	ixgbe) echo "ixgbe vfio flow" ;;
	i40e) echo "i40e vfio flow" ;;
	ice) echo "ice vfio flow" ;;
	iavf) echo "iavf vfio partly" ;;
	bnxt_en) echo "bnxt vfio soft" ;;
	ena) echo "ena vfio soft" ;;
	gve) echo "gve vfio soft" ;;
	vmxnet3) echo "vmxnet3 vfio soft" ;;
	virtio-pci) echo "virtio vfio soft" ;;
	vfio-pci | uio_pci_generic | igb_uio) echo "bound ${1} unread" ;;
	esac
}

iommu_groups() {
	local groups=("$ROOT"/sys/kernel/iommu_groups/*)

	echo ${#groups[@]}
}

noiommu() {
	[[ $(value /sys/module/vfio/parameters/enable_unsafe_noiommu_mode) == [Y1] ]]
}

dpdk_version() {
	local found library

	found=$(awk '/^Package: / { p = $2 } /^Status: / { s = $4 } /^Version: / && p ~ /^librte-eal[0-9]/ && s == "installed" {
		print $2; exit }' "$ROOT/var/lib/dpkg/status" 2>/dev/null)
	for library in "$ROOT"/usr/{,local/}lib{,64}/{,*/}librte_eal.so.+([0-9]); do
		found=${found:-of ABI ${library##*.so.}}
	done
	echo "$found"
}

# ---- show ----

nodes() {
	local path

	for path in "$ROOT"/sys/devices/system/node/node[0-9]*; do
		echo "${path##*/node}"
	done | sort -n
}

page_sizes() { # of a folder hugepages; KiB
	local path

	for path in "$ROOT$1"/hugepages-*kB; do
		path=${path##*-}
		echo "${path%kB}"
	done | sort -n
}

show_host() {
	local node size path total=0 list

	echo "${bold}NUMA nodes and huge pages$plain"
	for node in $(nodes); do
		path=/sys/devices/system/node/node$node
		printf '  node %-3s CPUs %s, %s of %s free\n' "$node" "$(value "$path/cpulist" none)" \
			"$(size_name "$(kib_of "$path/meminfo" MemFree)")" "$(size_name "$(kib_of "$path/meminfo" MemTotal)")"
		for size in $(page_sizes "$path/hugepages"); do
			list=$(value "$path/hugepages/hugepages-${size}kB/nr_hugepages" 0)
			total=$((total + list))
			printf '           pages of %s: %s, %s free\n' "$(size_name "$size")" "$list" \
				"$(value "$path/hugepages/hugepages-${size}kB/free_hugepages" 0)"
		done
	done
	((total)) || echo "  none are reserved: --hugepages 2M:1024 is 2 GiB"
	echo "${bold}Host$plain"
	list=$(awk '$3 == "hugetlbfs" { printf "%s%s (%s)", n++ ? ", " : "", $2, $4 }' "$ROOT/proc/mounts" 2>/dev/null)
	printf '  %-10s %s\n' hugetlbfs "${list:-not mounted; phubd needs no mount}" \
		isolated "CPUs $(value /sys/devices/system/cpu/isolated none), nohz_full $(value /sys/devices/system/cpu/nohz_full none)" \
		IOMMU "$(if (($(iommu_groups))); then
			echo "on, $(iommu_groups) groups"
		elif noiommu; then
			echo "off; vfio works without it, unsafely (enable_unsafe_noiommu_mode)"
		else
			echo "off: NICs that leave the kernel need it; intel_iommu=on iommu=pt on the kernel's command line"
		fi)" \
		memlock "$(memlock) (of this shell)"
	list=$(dpdk_version)
	printf '  %-10s %s\n' DPDK "${list:-not installed: apt-get install dpdk}"
}

memlock() {
	local limit

	limit=$(ulimit -l)
	[[ $limit == unlimited ]] && echo unlimited || echo "$limit KiB"
}

pmd_text() { # DRIVER
	local pmd how steering

	read -r pmd how steering <<<"$(pmd_of "$1")"
	case $how in
	'') echo "DPDK: this driver is not in deploy/dpdk.md" && return ;;
	kernel) echo -n "DPDK: $pmd, stays with the kernel's driver; " ;;
	vfio) echo -n "DPDK: $pmd, needs vfio-pci; " ;;
	*) echo "DPDK may have it" && return ;;
	esac
	case $steering in
	flow) echo "the NIC steers by UDP port" ;;
	partly) echo "the NIC steers by UDP port where its PF lets it" ;;
	soft) echo "cores hand packets over, for want of rte_flow" ;;
	*) echo "steering: see its guide" ;;
	esac
}

queues_of() { # INTERFACE rx|tx
	local found=("$ROOT/sys/class/net/$1/queues/$2"-*)

	echo ${#found[@]}
}

link_of() { # INTERFACE
	[[ $(value "/sys/class/net/$1/carrier" 0) == 1 ]] && echo up || echo down
}

show_nics() {
	local pci driver path interface use speed count=0

	echo "${bold}NICs$plain"
	for pci in $(nics); do
		count=$((count + 1))
		path=/sys/bus/pci/devices/$pci
		driver=$(link_name "$path/driver")
		printf '  %s%s%s  driver %s, node %s, %s:%s, IOMMU group %s\n' "$bold" "$pci" "$plain" "${driver:-none}" \
			"$(value "$path/numa_node" -1)" "$(value "$path/vendor")" "$(value "$path/device")" \
			"$(link_name "$path/iommu_group" || echo none)"
		for interface in $(interfaces_of "$pci"); do
			speed=$(value "/sys/class/net/$interface/speed" -1)
			[[ $speed == -1 ]] && speed= || speed=", $speed Mbit/s"
			printf '    %s: %s%s, MTU %s, %s RX and %s TX queues\n' "$interface" "$(link_of "$interface")" "$speed" \
				"$(value "/sys/class/net/$interface/mtu" -)" "$(queues_of "$interface" rx)" "$(queues_of "$interface" tx)"
		done
		while read -r use; do
			[[ -z $use ]] || echo "    in use: $use"
		done < <(uses_of "$pci")
		[[ -z $driver ]] || echo "    $(pmd_text "$driver")"
	done
	((count)) || echo "  none on PCI"
}

text() { # STRING; as JSON
	local s=${1//\\/\\\\}

	printf '"%s"' "${s//\"/\\\"}"
}

number() { # STRING; null where it is none
	[[ $1 =~ ^-?[0-9]+$ ]] && printf '%s' "$1" || printf null
}

joined() { # lines on stdin
	paste -sd, -
}

json_interface() { # INTERFACE
	printf '{"name":%s,"up":%s,"speed_mbit":%s,"mtu":%s,"rx_queues":%s,"tx_queues":%s,"addresses":[%s],"default_route":%s}\n' \
		"$(text "$1")" "$([[ $(link_of "$1") == up ]] && echo true || echo false)" \
		"$(number "$(value "/sys/class/net/$1/speed" -1)")" "$(number "$(value "/sys/class/net/$1/mtu")")" \
		"$(queues_of "$1" rx)" "$(queues_of "$1" tx)" \
		"$(for a in $(addresses_of "$1"); do text "$a" && echo; done | joined)" \
		"$(has_default "$1" && echo true || echo false)"
}

json_nic() { # PCI
	local path=/sys/bus/pci/devices/$1 uses driver pmd steering

	uses=$(uses_of "$1")
	driver=$(link_name "$path/driver")
	read -r pmd _ steering <<<"$(pmd_of "$driver")"
	printf '{"pci":%s,"driver":%s,"node":%s,"vendor":%s,"device":%s,"iommu_group":%s,"pmd":%s,"steering":%s,"ssh":%s,' \
		"$(text "$1")" "$(text "$driver")" "$(number "$(value "$path/numa_node" -1)")" "$(text "$(value "$path/vendor")")" \
		"$(text "$(value "$path/device")")" "$(number "$(link_name "$path/iommu_group")")" "$(text "$pmd")" \
		"$(text "$steering")" "$([[ $uses == *"SSH connection"* ]] && echo true || echo false)"
	printf '"uses":[%s],"interfaces":[%s]}\n' \
		"$(while read -r u; do [[ -z $u ]] || { text "$u" && echo; }; done <<<"$uses" | joined)" \
		"$(for i in $(interfaces_of "$1"); do json_interface "$i"; done | joined)"
}

json_nodes() {
	local node path size

	for node in $(nodes); do
		path=/sys/devices/system/node/node$node
		printf '{"node":%s,"cpus":%s,"memory_kib":%s,"free_kib":%s,"hugepages":[%s]}\n' "$node" \
			"$(text "$(value "$path/cpulist")")" "$(number "$(kib_of "$path/meminfo" MemTotal)")" \
			"$(number "$(kib_of "$path/meminfo" MemFree)")" \
			"$(for size in $(page_sizes "$path/hugepages"); do
				printf '{"size_kib":%s,"total":%s,"free":%s}\n' "$size" \
					"$(number "$(value "$path/hugepages/hugepages-${size}kB/nr_hugepages")")" \
					"$(number "$(value "$path/hugepages/hugepages-${size}kB/free_hugepages")")"
			done | joined)"
	done
}

show_json() {
	printf '{"nodes":[%s],"hugetlbfs":[%s],"isolated":%s,"nohz_full":%s,"iommu_groups":%s,"noiommu":%s,' \
		"$(json_nodes | joined)" \
		"$(while read -r _ m t _; do [[ $t != hugetlbfs ]] || { text "$m" && echo; }; done \
			< <(cat "$ROOT/proc/mounts" 2>/dev/null) | joined)" \
		"$(text "$(value /sys/devices/system/cpu/isolated)")" "$(text "$(value /sys/devices/system/cpu/nohz_full)")" \
		"$(iommu_groups)" "$(noiommu && echo true || echo false)"
	printf '"memlock_kib":%s,"dpdk":%s,"nics":[%s]}\n' "$(number "$(ulimit -l)")" "$(text "$(dpdk_version)")" \
		"$(for pci in $(nics); do json_nic "$pci"; done | joined)"
}

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
		refuse "--hugepages $wish: that is $(size_name $(((need - now) * kib))) more, and $(size_name "${have:-0}") are free" \
			"${node:+on node $node}: wish for fewer, or reserve them on the kernel's command line"
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
		[[ -z $use || -n $force ]] ||
			refuse "--bind $1: $use: choose another NIC, move that elsewhere, or --force"
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
