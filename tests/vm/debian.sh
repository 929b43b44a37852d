#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the folder of Debian's own kernel as qemu boots it: "vmlinux", "release", "modules/" (those of the initial file
# system, and "order", what comes first) and "lib/modules/" (the rest). Fetches and unpacks it when there is none yet (70
# MB, half a minute). Nothing is installed. linux-image-cloud-amd64 would not do: it lacks rdma_rxe and 9p.
#
# Usage: tests/vm/debian.sh    called by run.sh; reads PHUB_VM_KERNEL (linux-image-amd64)
# Exit status: 0; 77 this machine cannot have one; 125 unpacking broke.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
. "$here/common.sh"

# rxe wants crc32 and does not say so; crc32_pclmul is slower where it is emulated.
FIRST="crc32_generic virtio_pci 9pnet_virtio 9p overlay virtio_console virtio_net rdma_rxe rdma_ucm ib_uverbs dummy"

modules() { # RELEASE
	local kernel=lib/modules/$1/kernel module path

	# Most drivers have no use here: 480 MB become 60.
	find "$kernel/drivers" -mindepth 1 -maxdepth 1 ! -name infiniband ! -name net ! -name virtio ! -name char -exec rm -rf {} +
	rm -rf "$kernel/sound" "$kernel/drivers/"{infiniband/hw,net/wireless,net/ethernet}
	depmod -b . "$1"
	mkdir modules
	for module in $FIRST; do
		modprobe -d . -S "$1" --show-depends "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
		module=$(basename "$path" .xz)
		case $path in
		*.xz) xz -dc "$path" >"modules/$module" ;;
		*) cp "$path" "modules/$module" ;;
		esac
		echo "$module" >>modules/order
	done
	[[ -s modules/order ]] || die 125 "no modules in Debian's kernel"
}

unpack() { # FOLDER
	local package=${1#debian-} release

	need dpkg-deb python3 depmod xz
	echo "vm: fetching $package, once, into $VM_CACHE" >&2
	fetch "$package"
	dpkg-deb -x ./*.deb . && rm ./*.deb
	release=${package#linux-image-}
	echo "$release" >release
	modules "$release"
	# The bare ELF kernel needs no decompression, which is slow under emulation.
	python3 "$here/unpack_kernel.py" "boot/vmlinuz-$release" vmlinux
	rm -rf boot usr
}

# The meta package names the newest; one that is here is taken as it is, so that a run needs no apt.
wanted=${PHUB_VM_KERNEL:-linux-image-amd64}
if [[ $wanted = linux-image-amd64 ]]; then
	have=$(find "$VM_CACHE" -maxdepth 1 -name 'debian-linux-image-*-amd64' 2>/dev/null | sort -V | tail -n 1)
	wanted=${have##*/debian-}
	[[ -n $have ]] || wanted=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)$/\1/p' | head -n 1)
	[[ -n $wanted ]] || die 77 "no package linux-image-amd64 (apt-get update?)"
fi
cached "debian-$wanted" unpack
