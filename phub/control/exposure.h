/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the box reached at a public address while what goes there is plain? Said once at start, and to administrators.
 */
#ifndef PHUB_CONTROL_EXPOSURE_H
#define PHUB_CONTROL_EXPOSURE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "phub/control/config.h"

/* Neither loopback nor of a private, shared or link-local network: routers of others carry it. Pure. */
bool exposure_is_public(const struct sockaddr *address);

/*
 * What is open to whom, and what to do; "" when no address of `listen` is public. Of "*" all addresses count that this
 * machine has now. May block on names.
 */
void exposure_describe(const struct config *config, char *out, size_t bytes);

/*
 * Which secrets of `config` have fewer than CONFIG_SECRET_BYTES_GOOD bytes, and what to do; "" when none has, or when
 * all that `listen` names is loopback. Whoever overhears one session without TLS can try guesses at home, as fast as
 * HMAC-SHA-256 goes. May block on names.
 */
void exposure_describe_secrets(const struct config *config, char *out, size_t bytes);

#endif
