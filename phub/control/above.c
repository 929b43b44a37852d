/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One box above, for all jobs.
 */
#include "phub/control/above.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/control.h"
#include "phub/control/job.h"
#include "phub/control/parent.h"

void above_init(struct control *c)
{
	const struct config *config = c->config;

	c->above = (struct above){.there = config->uplink[0], .known = config->uplink[0] && !config->uplink_name[0]};
	c->above.place.at = config->uplink_at;
	c->above.place.tls = config->uplink_tls;
}

static bool above_is_at(const struct above *a, const struct above_place *place)
{
	return a->known && a->place.at.port == place->at.port && a->place.tls == place->tls &&
	       strcmp(a->place.at.host, place->at.host) == 0;
}

void above_found(struct control *c, const struct above_place *place)
{
	char was[340], is[340];

	if (above_is_at(&c->above, place))
		return;
	above_name(c, was, sizeof(was));
	c->above.place = *place;
	c->above.known = true;
	log_info("uplink %s: the box above is at %s now", was, above_name(c, is, sizeof(is)));
	for (struct job *job = c->jobs; job; job = job->next)
		parent_moved(job);
}

void above_missed(struct control *c, const char *why)
{
	snprintf(c->above.why, sizeof(c->above.why), "%s", why);
}

const char *above_name(const struct control *c, char *out, size_t bytes)
{
	const struct config_listen *at = &c->above.place.at;

	if (c->above.known)
		snprintf(out, bytes, strchr(at->host, ':') ? "[%s]:%u" : "%s:%u", at->host, at->port);
	else
		snprintf(out, bytes, "%s", c->config->uplink);
	return out;
}

/* ---- where others reach this one ---- */

static bool above_is_any(const char *host)
{
	return !host[0] || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool above_is_loopback(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* The first that others can come by: one of loopback only where the box above is there, too. */
static unsigned above_listener(const struct control *c)
{
	for (unsigned i = 0; i < c->config->listen_count; i++)
		if (above_is_loopback(c->config->listen[i].host) == above_is_loopback(c->above.place.at.host))
			return i;
	return 0;
}

bool above_is_out_of_reach(const struct control *c)
{
	return above_is_loopback(c->config->listen[above_listener(c)].host) && !c->config->advertise[0] &&
	       !above_is_loopback(c->above.place.at.host);
}

/* Without a host: at the address that it calls from. */
void above_tell_address(const struct job *job, Phub__Gather *gather)
{
	const struct config *config = job->control->config;
	const struct box *box = job->control->box;
	const struct config_listen *at = &config->advertise_at;
	unsigned listener = above_listener(job->control);

	if (!at->port) {
		const char *bound =
			listener < box->listener_count ? strrchr(box->listeners[listener].bound, ':') : NULL;

		at = &config->listen[listener];
		gather->port = bound ? (uint32_t)strtoul(bound + 1, NULL, 10) : at->port;
	} else {
		gather->port = at->port;
	}
	if (!above_is_any(at->host))
		gather->host = (char *)(uintptr_t)at->host;
	gather->tls = config->tls == CONFIG_TLS_REQUIRE;
	gather->cores = parent_cores(job);
}
