/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/price.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

static bool price_good(double x)
{
	return x >= 0 && isfinite(x);
}

static bool price_good_link(const struct price_link *link)
{
	return price_good(link->rate) && price_good(link->latency) && price_good(link->money);
}

const char *price_check(const struct price *price)
{
	if ((unsigned)price->unit >= PRICE_UNIT_COUNT)
		return "the unit of costs is bytes, seconds or money";
	if (!price_good_link(&price->link) || !price_good_link(&price->within))
		return "rate, latency and price of a link are numbers of at least 0";
	if (price->unit == PRICE_SECONDS && !(price->link.rate > 0))
		return "costs in seconds want the link's rate, in bytes a second, above 0";
	if (price->unit == PRICE_MONEY && !(price->link.money > 0))
		return "costs in money want the link's price, of 10^9 bytes, above 0";
	return NULL;
}

double price_of(enum price_unit unit, const struct price_link *link, double bytes, double exchanges)
{
	switch (unit) {
	case PRICE_SECONDS:
		return exchanges * link->latency + (link->rate > 0 ? bytes / link->rate : 0);
	case PRICE_MONEY:
		return bytes / PRICE_MONEY_BYTES * link->money;
	case PRICE_BYTES:
		break;
	}
	return bytes;
}

const char *price_unit_name(enum price_unit unit)
{
	static const char *const names[PRICE_UNIT_COUNT] = {"bytes", "seconds", "money"};

	return (unsigned)unit < PRICE_UNIT_COUNT ? names[unit] : "invalid";
}
