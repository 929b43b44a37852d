/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory exists for workers on the box's own host alone, and whether this is that host is found out by
 * trying: an address that looks remote may be our own, and one that looks local may be a tunnel.
 */
#include "client/pick.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where the box serves it: under its own name, or that of the other one with the same packets. False: nowhere. */
static bool pick_served(
	const struct client_session *s, const char *name, const char **offered, char *address, size_t address_bytes)
{
	static const char *const twins[][2] = {{"udp", "dpdk"}, {"dpdk", "udp"}};

	*offered = name;
	if (client_session_address(s, name, address, address_bytes) == 0)
		return true;
	for (unsigned i = 0; i < sizeof(twins) / sizeof(twins[0]); i++) {
		if (strcmp(twins[i][0], name) != 0)
			continue;
		*offered = twins[i][1];
		return client_session_address(s, *offered, address, address_bytes) == 0;
	}
	return false;
}

/* Does anybody listen at the address? 1, 0, or an error: ports that the user named cannot be used. */
static int pick_reaches(
	const struct client_session *s, const struct transport_ops *ops, const char *address, struct err *e)
{
	struct transport_config config = s->env->config;
	struct transport *t;
	struct conn *c;
	struct err why;
	bool reaches;
	int rc;

	config.queue_conns_max = 1;
	config.quiet = true;
	rc = ops->open(&config, &t, &why);
	if (rc < 0 && config.rdma && *config.rdma && strcmp(ops->name, "verbs") == 0)
		return err_set(e, rc, "%s: PHUB_RDMA=%.100s: %s", s->who, config.rdma, why.text);
	if (rc < 0)
		return 0;
	reaches = ops->connect(t, address, s->id, 0, s->key, NULL, &c, NULL) == 0;
	if (reaches)
		ops->abandon(t, c);
	ops->close(t);
	return reaches;
}

/* May one that comes later be taken, if this one is not? */
static bool pick_is_last(const struct transport_ops *const *t)
{
	while (*++t)
		if (!(*t)->by_name)
			return false;
	return true;
}

static int pick_none(const struct client_session *s, struct err *e)
{
	char offers[128] = "";
	size_t at = 0;

	for (unsigned i = 0; i < s->address_count && at < sizeof(offers); i++)
		at += (size_t)snprintf(
			offers + at, sizeof(offers) - at, "%s%s", i ? ", " : "", s->addresses[i].transport);
	return err_set(e, -ENOTSUP, "%s: box %s offers %s; this worker asks for %s", s->who, s->box,
		at ? offers : "no transport",
		s->settings->transport ? s->settings->transport : "any that it takes unasked");
}

int pick_again(const struct client_session *s, struct pick *pick, struct err *e)
{
	char address[PICK_ADDRESS_BYTES];
	const char *offered;

	if (!pick_served(s, pick->ops->name, &offered, address, sizeof(address)))
		return err_set(e, -ENOTSUP, "%s: box %s does not serve %s, by which the job runs", s->who, s->box,
			pick->ops->name);
	pick->offer = offered;
	memcpy(pick->address, address, sizeof(address));
	return 0;
}

/* Rounds that lie in memory of the box are lost with it: who may go on at the standby comes by another way. */
static bool pick_strands(const struct client_session *s, const struct transport_ops *ops)
{
	return strcmp(ops->name, "shm") == 0 && s->settings->sync == PHUB_BSP && client_session_can_move(s);
}

/*
 * `movable`: of those by which a worker can go on at the standby, unless one was asked for. 0, 1: there is none, or
 * what pick_reaches() says.
 */
static int pick_one(const struct client_session *s, bool movable, struct pick *out, struct err *e)
{
	const char *wanted = s->settings->transport;
	int rc;

	for (const struct transport_ops *const *t = s->env->transports; *t; t++) {
		const char *offered;

		if (wanted ? strcmp(wanted, (*t)->name) != 0 : (*t)->by_name)
			continue;
		if (!wanted && s->unmapped && strcmp((*t)->name, "shm") == 0)
			continue;
		if (!wanted && movable && pick_strands(s, *t))
			continue;
		if (!pick_served(s, (*t)->name, &offered, out->address, sizeof(out->address)))
			continue;
		rc = !wanted && !pick_is_last(t) ? pick_reaches(s, *t, out->address, e) : 1;
		if (rc < 0)
			return rc;
		if (rc == 0)
			continue;
		out->ops = *t;
		out->offer = offered;
		return 0;
	}
	return 1;
}

int pick_transport(const struct client_session *s, struct pick *out, struct err *e)
{
	int rc = pick_one(s, true, out, e);

	if (rc == 1)
		rc = pick_one(s, false, out, e);
	return rc == 1 ? pick_none(s, e) : rc;
}
