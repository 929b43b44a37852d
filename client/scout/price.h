/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What talking costs over a class of links, in the unit that a scout weighs it in: bytes; seconds, where an exchange
 * that says little has its latency all the same; or money. Pure; any thread; never blocks.
 */
#ifndef PHUB_CLIENT_SCOUT_PRICE_H
#define PHUB_CLIENT_SCOUT_PRICE_H

enum price_unit { PRICE_BYTES = 0, PRICE_SECONDS = 1, PRICE_MONEY = 2 };

#define PRICE_UNIT_COUNT  3
#define PRICE_MONEY_BYTES 1e9 /* what `money` is for */

struct price_link {
	double rate;    /* bytes a second */
	double latency; /* seconds of an exchange, however little it says */
	double money;   /* for 10^9 bytes */
};

/* Zeroed: bytes. Of `within`, the class of links of sites within, a rate of 0 is one that takes no time. */
struct price {
	enum price_unit unit;
	struct price_link link, within;
};

/* What is wrong, for a message: a number below 0 or not finite, a unit that is none, or one that lacks its rate or
 * money; else NULL. */
const char *price_check(const struct price *price);

/* Of so many bytes in so many exchanges. */
double price_of(enum price_unit unit, const struct price_link *link, double bytes, double exchanges);

/* "bytes", "seconds", "money"; "invalid". */
const char *price_unit_name(enum price_unit unit);

#endif
