/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and certificates for tests, made anew each time, in a folder of their own; and a way between two streams that
 * carries as little at a time as a test wants, loses nothing, and keeps what it carried.
 */
#ifndef TESTS_UNIT_TLS_RIG_H
#define TESTS_UNIT_TLS_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/stream.h"

struct tls_files {
	char folder[64];
	char ca[96], cert[96], key[96]; /* a box "box.test", also 127.0.0.1, signed by the authority */
	char other_ca[96];              /* that has signed nothing */
	char other_key[96];             /* of no certificate */
	char locked_key[96];            /* the box's, with a password */
	char pin[65];
};

void tls_files_make(struct tls_files *f);
void tls_files_remove(struct tls_files *f);

enum { TLS_WAY_BYTES = 1 << 16 };

/* One direction. */
struct tls_way {
	uint8_t bytes[TLS_WAY_BYTES]; /* all that it ever carried */
	size_t put, got;
	size_t room; /* bytes under way at most */
	bool ended;
};

/* One end of two ways; the rig's, closed by ops->close(). */
struct stream *tls_way_open(struct tls_way *in, struct tls_way *out);

#endif
