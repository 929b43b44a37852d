/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of options that are more than a word: numbers with units, lists of addresses, transports and CPUs. Readers
 * return 0, -EINVAL (not understood) or -ERANGE, and write only on success. Those of lists say in `why` which item it
 * is and what is wrong with it, where they know more than the code does. Inside of config only.
 */
#ifndef PHUB_CONTROL_CONFIG_VALUES_H
#define PHUB_CONTROL_CONFIG_VALUES_H

#include "phub/control/config.h"

/* Decimal digits alone. */
int value_read_number(const char *text, uint64_t *out);
/* A number, with KiB, MiB, GiB, TiB or B behind it when wanted. */
int value_read_bytes(const char *text, uint64_t *out);
/* In the largest unit that divides it. */
void value_write_bytes(uint64_t value, char *out, size_t bytes);

/* "host:port" or "[ipv6]:port"; an empty host means all addresses and is written as "*". */
int value_read_address(const char *item, struct config_listen *out);

/* "127.0.0.1:7077, [::1]:7077" */
int value_read_listen(struct config *config, const char *text, struct err *why);
void value_write_listen(const struct config *config, char *out, size_t bytes);

/* "7100-7131" or "any" */
int value_read_ports(struct config *config, const char *text);
void value_write_ports(const struct config *config, char *out, size_t bytes);

/* "tcp, shm". Those that a box offers to workers: loop is for simulations, which bring their own. */
extern const char *const value_transports[]; /* NULL-terminated */
int value_read_transports(struct config *config, const char *text, struct err *why);
void value_write_transports(const struct config *config, char *out, size_t bytes);

/* "auto", "4", or "[0, 2-5]" */
int value_read_cores(struct config *config, const char *text, struct err *why);
void value_write_cores(const struct config *config, char *out, size_t bytes);

#endif
