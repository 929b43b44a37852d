/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/cli/checkpoint_zip.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	ZIP_VERSION = 45,       /* zip64 */
	ZIP_UTF8 = 0x0800,      /* names are */
	ZIP_DATE = 0x0021,      /* 1980-01-01: the same weights make the same file */
	ZIP_LOCAL_EXTRA = 20,   /* 64-bit sizes */
	ZIP_CENTRAL_EXTRA = 28, /* and where the local header is */
};

static uint8_t *zip_put(uint8_t *to, unsigned bytes, uint64_t value)
{
	for (unsigned i = 0; i < bytes; i++)
		*to++ = (uint8_t)(value >> 8 * i);
	return to;
}

static uint64_t zip_name_bytes(const struct checkpoint_array *a)
{
	return strlen(a->name) + 4;
}

static uint64_t zip_local_bytes(const struct checkpoint_array *a)
{
	return 30 + zip_name_bytes(a) + ZIP_LOCAL_EXTRA;
}

static uint64_t zip_size(const struct checkpoint_array *a)
{
	return CHECKPOINT_NPY_BYTES + a->elements * sizeof(float);
}

static uint8_t *zip_put_name(uint8_t *to, const struct checkpoint_array *a)
{
	size_t length = strlen(a->name);

	memcpy(to, a->name, length);
	memcpy(to + length, ".npy", 4);
	return to + length + 4;
}

uint64_t checkpoint_zip_place(struct checkpoint_array *a, uint64_t at)
{
	a->entry_at = at;
	a->at = at + zip_local_bytes(a) + CHECKPOINT_NPY_BYTES;
	return a->at + a->elements * sizeof(float);
}

void checkpoint_zip_npy(const struct checkpoint_array *a, uint8_t out[CHECKPOINT_NPY_BYTES])
{
	char text[CHECKPOINT_NPY_BYTES];
	int length = snprintf(
		text, sizeof(text), "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ",), }", a->elements);

	memcpy(out, "\x93NUMPY\x01\x00", 8);
	zip_put(out + 8, 2, CHECKPOINT_NPY_BYTES - 10);
	memset(out + 10, ' ', CHECKPOINT_NPY_BYTES - 11);
	memcpy(out + 10, text, (size_t)length);
	out[CHECKPOINT_NPY_BYTES - 1] = '\n';
}

/* From the version that it takes to the length of the name: the same in both headers. */
static uint8_t *zip_put_common(uint8_t *to, const struct checkpoint_array *a)
{
	to = zip_put(to, 2, ZIP_VERSION);
	to = zip_put(to, 2, ZIP_UTF8);
	to = zip_put(to, 2, 0); /* stored */
	to = zip_put(to, 2, 0);
	to = zip_put(to, 2, ZIP_DATE);
	to = zip_put(to, 4, a->crc);
	to = zip_put(to, 4, UINT32_MAX); /* sizes: see the extra field */
	to = zip_put(to, 4, UINT32_MAX);
	return zip_put(to, 2, zip_name_bytes(a));
}

static uint8_t *zip_put_sizes(uint8_t *to, const struct checkpoint_array *a, unsigned extra)
{
	to = zip_put(to, 2, 1);
	to = zip_put(to, 2, extra - 4);
	to = zip_put(to, 8, zip_size(a));
	return zip_put(to, 8, zip_size(a));
}

uint64_t checkpoint_zip_local(const struct checkpoint_array *a, uint8_t out[CHECKPOINT_ZIP_LOCAL_MAX])
{
	uint8_t *to = zip_put(out, 4, 0x04034b50);

	to = zip_put_common(to, a);
	to = zip_put(to, 2, ZIP_LOCAL_EXTRA);
	to = zip_put_name(to, a);
	zip_put_sizes(to, a, ZIP_LOCAL_EXTRA);
	return zip_local_bytes(a);
}

static uint8_t *zip_put_central(uint8_t *to, const struct checkpoint_array *a)
{
	to = zip_put(to, 4, 0x02014b50);
	to = zip_put(to, 2, ZIP_VERSION);
	to = zip_put_common(to, a);
	to = zip_put(to, 2, ZIP_CENTRAL_EXTRA);
	to = zip_put(to, 2 + 2 + 2, 0); /* comment, disk, internal attributes */
	to = zip_put(to, 4, 0);         /* external ones */
	to = zip_put(to, 4, UINT32_MAX);
	to = zip_put_name(to, a);
	to = zip_put_sizes(to, a, ZIP_CENTRAL_EXTRA);
	return zip_put(to, 8, a->entry_at);
}

/* zip64's end, where that is, and the end of old. */
static uint8_t *zip_put_end(uint8_t *to, uint64_t count, uint64_t at, uint64_t bytes)
{
	to = zip_put(to, 4, 0x06064b50);
	to = zip_put(to, 8, 44);
	to = zip_put(to, 2, ZIP_VERSION);
	to = zip_put(to, 2, ZIP_VERSION);
	to = zip_put(to, 8, 0); /* disks */
	to = zip_put(to, 8, count);
	to = zip_put(to, 8, count);
	to = zip_put(to, 8, bytes);
	to = zip_put(to, 8, at);
	to = zip_put(to, 4, 0x07064b50);
	to = zip_put(to, 4, 0);
	to = zip_put(to, 8, at + bytes);
	to = zip_put(to, 4, 1);
	to = zip_put(to, 4, 0x06054b50);
	to = zip_put(to, 4, 0);
	to = zip_put(to, 4, UINT32_MAX); /* counts, twice 16 bits */
	to = zip_put(to, 8, UINT64_MAX); /* size and place */
	return zip_put(to, 2, 0);
}

uint8_t *checkpoint_zip_end(const struct checkpoint_array *arrays, uint64_t count, uint64_t *at, uint64_t *bytes)
{
	uint64_t room = 56 + 20 + 22, used = 0;
	uint8_t *out, *to;

	*at = 0;
	for (uint64_t i = 0; i < count; i++) {
		if (arrays[i].left_out)
			continue;
		room += 46 + zip_name_bytes(&arrays[i]) + ZIP_CENTRAL_EXTRA;
		*at = arrays[i].at + arrays[i].elements * sizeof(float);
		used++;
	}
	out = to = malloc(room);
	if (!out)
		return NULL;
	for (uint64_t i = 0; i < count; i++)
		if (!arrays[i].left_out)
			to = zip_put_central(to, &arrays[i]);
	to = zip_put_end(to, used, *at, (uint64_t)(to - out));
	*bytes = (uint64_t)(to - out);
	return out;
}
