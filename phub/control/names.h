/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How messages call other boxes: by the address at which others reach them, and the rack file's name for that, or, of
 * one that is not in a rack file here, the name that it gives itself. Never by the port that a connection happens to
 * come from. Control thread; nothing blocks: no name is looked up.
 */
#ifndef PHUB_CONTROL_NAMES_H
#define PHUB_CONTROL_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "phub/control/config.h"

struct control;
struct racks;
struct session;

#define NAMES_ADDRESS_BYTES 80u
#define NAMES_TEXT_BYTES    (CONFIG_NAME_BYTES + CONFIG_HOST_BYTES + 24u) /* "'B' at 10.0.2.1:7077" */

/* A box that calls this one. */
struct names_box {
	char host[CONFIG_HOST_BYTES];
	uint16_t port;                     /* 0: it does not say (of an older release, before its Gather) */
	char address[NAMES_ADDRESS_BYTES]; /* "10.0.2.1:7077"; without a port its host alone */
	char name[CONFIG_NAME_BYTES];      /* "": it has none */
};

/* As it says of itself (Hello, Gather), untrusted; without a host it is at the one that `peer`, its stream's, is at. */
void names_take(const struct control *c, const char *peer, const char *host, uint32_t port, const char *name,
	struct names_box *out);

/* Index of the box at this address in a rack file, or RACKS_NONE, also where there is no file. */
int names_find_box(const struct racks *racks, const char *host, uint16_t port);
/* The rack file's name for it; "": it has none there. */
const char *names_find(const struct control *c, const char *host, uint16_t port);
/* "10.0.2.1:7077", "[fd77::2]:7077". Returns `out`. */
const char *names_write_address(const char *host, uint16_t port, char *out, size_t bytes);
/* "'B' at 10.0.2.1:7077", or, where the name is "", the address alone. Returns `out`. */
const char *names_write(const char *name, const char *address, char *out, size_t bytes);
/* Likewise of the box above, as it is called at this time; "etcd:NAME" while it is not known where it is. */
const char *names_above(const struct control *c, char *out, size_t bytes);
/* Likewise of this box, as the one at the other end of this session calls it. */
const char *names_own(const struct session *s, char *out, size_t bytes);

#endif
