#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the ELF kernel that a bzImage holds compressed.

Usage: unpack_kernel.py VMLINUZ VMLINUX    called by debian.sh
"""
import lzma
import subprocess
import sys


def unpack(image):
    setup_sectors = image[0x1F1] or 4  # the boot protocol's header
    begin = (setup_sectors + 1) * 512 + int.from_bytes(image[0x248:0x24C], "little")
    size = int.from_bytes(image[0x24C:0x250], "little")
    data = image[begin:begin + size - 4]  # the last four bytes are a length
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor().decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return subprocess.run(["zstd", "-dcq"], input=data, check=True, stdout=subprocess.PIPE).stdout
    sys.exit("unpack_kernel.py: unknown compression " + data[:8].hex())


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as source:
        kernel = unpack(source.read())
    if kernel[:4] != b"\x7fELF":
        sys.exit("unpack_kernel.py: no ELF kernel inside")
    with open(sys.argv[2], "wb") as target:
        target.write(kernel)


main()
