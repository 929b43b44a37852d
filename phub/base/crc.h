/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums that tell damage: CRC32C for what is sent and stored (ISA-L, where the build has it), and the CRC-32 of zip
 * files. `crc` is that of the bytes before, 0: there are none. Any thread; never blocks.
 */
#ifndef PHUB_BASE_CRC_H
#define PHUB_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* CRC32C (RFC 3720, B.4): the first is ISA-L's where there is one, the second a table's, which is what the first must
 * give. */
uint32_t crc_32c(uint32_t crc, const void *bytes, size_t count);
uint32_t crc_32c_table(uint32_t crc, const void *bytes, size_t count);

/* CRC-32 (IEEE 802.3), as zip and gzip have it. */
uint32_t crc_32_zip(uint32_t crc, const void *bytes, size_t count);

#endif
