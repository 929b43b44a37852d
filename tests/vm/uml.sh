#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the folder of a user-mode Linux kernel ("linux") that has rdma_rxe inside; builds it when there is none yet, from
# Debian's linux-source-6.1 (apt-get download, 139 MB). Nothing is installed. Debian's own user-mode-linux
# package has no InfiniBand, and its kernels are not user-mode ones.
#
# Usage: tests/vm/uml.sh    called by run.sh -U and `make vm`
# Exit status: 0; 77 this machine cannot have one; 125 the build broke.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
. "$here/common.sh"

SERIES=6.1

# Documentation, and the headers of graphics cards, are a third of all bytes.
unpack() {
	local archive=/usr/src/linux-source-$SERIES.tar.xz

	if [[ ! -r $archive ]]; then
		fetch "linux-source-$SERIES"
		dpkg-deb --fsys-tarfile ./*.deb | tar -xO "./usr/src/linux-source-$SERIES.tar.xz" >source.tar.xz
		rm ./*.deb
		archive=source.tar.xz
	fi
	xz -dcT0 "$archive" | tar -x -b 2048 --exclude='*/drivers/gpu/*/*.h' --exclude='*/Documentation/*.rst'
	rm -f source.tar.xz
}

build() {
	local option flags

	need make gcc flex bison bc xz patch
	[[ $(uname -m) = x86_64 ]] || die 77 "no user-mode Linux for $(uname -m)"
	# What our own make hands down (CC=clang, its jobs) is not the kernel's.
	unset MAKEFLAGS MFLAGS MAKELEVEL
	unpack
	cd "linux-source-$SERIES"
	patch -sp1 <"$here/uml.patch"
	# At 100 ticks a second a process that polls keeps the only CPU for 10 ms.
	sed -i '/^config HZ$/,/default/s/default 100$/default 1000/' arch/um/Kconfig
	make -s ARCH=um KCONFIG_ALLCONFIG="$here/uml.config" allnoconfig
	while read -r option; do
		grep -qx "$option" .config || die 125 "the kernel is not configured with $option"
	done < <(grep '^CONFIG_' "$here/uml.config"; echo CONFIG_HZ=1000)
	# -O1 compiles in three quarters of the time of -O2, which stays where bytes are moved.
	for flags in drivers/infiniband lib net/core net/ipv4; do
		echo 'subdir-ccflags-y += -O2' >>$flags/Makefile
	done
	make -s ARCH=um -j"$(nproc)" KCFLAGS=-O1 linux >../log 2>&1 || { tail -n 30 ../log; die 125 "the build broke"; }
	strip -o ../linux linux
	cd .. && rm -rf "linux-source-$SERIES" log
}

kernel() {
	echo "vm: building a user-mode kernel, once, into $VM_CACHE: minutes" >&2
	build
	echo "vm: built after $SECONDS s" >&2
}

# Another way to build it is another kernel; another comment is not.
cached "uml-$SERIES-$({ declare -f unpack build; cat "$here/uml.config" "$here/uml.patch"; } | cksum | cut -d' ' -f1)" kernel
