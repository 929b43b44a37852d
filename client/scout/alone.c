/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of a scout by itself. What is decided and not yet in force is a second scout.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/api.h"
#include "client/scout/options.h"

enum alone_stage { ALONE_OPEN, ALONE_OBSERVED, ALONE_DECIDED };

struct phub_scout {
	struct scout scout, next;
	enum alone_stage stage;
	struct scout_report *reports;
	unsigned sites;
};

static int alone_refuse(int rc, const char *why)
{
	return err_set(api_last_error(), rc, "scout: %s", why);
}

int phub_scout_create(const struct phub_scout_options *options, phub_scout_t **out)
{
	struct scout_config config;
	phub_scout_t *scout;
	int rc;

	if (!out)
		return alone_refuse(-EINVAL, "phub_scout_create() needs a place for the handle");
	rc = options_scout(options, NULL, &config, api_last_error());
	if (rc < 0)
		return rc;
	scout = calloc(1, sizeof(*scout));
	if (!scout)
		return alone_refuse(-ENOMEM, "no memory for it");
	rc = scout_init(&scout->scout, &config, api_last_error());
	if (rc < 0) {
		free(scout);
		return rc;
	}
	*out = scout;
	return 0;
}

void phub_scout_destroy(phub_scout_t *scout)
{
	if (scout)
		free(scout->reports);
	free(scout);
}

double phub_scout_theta(const phub_scout_t *scout)
{
	return scout ? scout_theta(&scout->scout) : NAN;
}

int phub_scout_host(const phub_scout_t *scout, unsigned site, unsigned sites)
{
	if (!scout || sites < 2 || sites > SCOUT_SITES_MAX || site >= sites)
		return alone_refuse(-EINVAL, "a model travels from one of 2 to 4096 sites, numbered from 0");
	return (int)scout_host(&scout->scout, site, sites);
}

/* A report of which the caller's library knows less, or more. */
static struct scout_report alone_report(const struct phub_scout_report *given, size_t size)
{
	struct phub_scout_report own = {0};

	memcpy(&own, given, size < sizeof(own) ? size : sizeof(own));
	return (struct scout_report){.home = own.home,
		.away = own.away,
		.samples = own.samples,
		.bytes = own.bytes,
		.trained = own.trained,
		.train = own.train,
		.tried = own.tried,
		.before = own.before,
		.after = own.after,
		.within = own.within,
		.exchanges = own.exchanges,
		.exchanges_within = own.exchanges_within,
		.alike = own.alike};
}

int phub_scout_hear(phub_scout_t *scout, double said, double heard, double squares, double rate)
{
	if (!scout)
		return alone_refuse(-EINVAL, "the handle is NULL");
	if (!(squares > 0 && squares <= 1 + 1e-9))
		return alone_refuse(-EINVAL, "`squares` of shares, which sum to 1, are above 0 and at most 1");
	scout_hear(&scout->scout, said, heard, squares, rate);
	scout->stage = ALONE_OPEN;
	return 0;
}

int phub_scout_observe(phub_scout_t *scout, const struct phub_scout_report *reports, unsigned sites)
{
	struct scout_report *own;
	size_t size;

	if (!scout || !reports || sites == 0 || sites > SCOUT_SITES_MAX)
		return alone_refuse(-EINVAL, "it observes reports of 1 to 4096 sites");
	size = reports[0].size;
	if (size < sizeof(size_t) || size > 4096)
		return alone_refuse(-EINVAL, "phub_scout_report.size must be the struct's");
	own = calloc(sites, sizeof(*own));
	if (!own)
		return alone_refuse(-ENOMEM, "no memory for reports");
	for (unsigned i = 0; i < sites; i++) {
		own[i] = alone_report((const void *)((const char *)reports + i * size), size);
		own[i].host = sites > 1 ? scout_host(&scout->scout, i, sites) + 1 : 0;
	}
	free(scout->reports);
	scout->reports = own;
	scout->sites = sites;
	scout->stage = ALONE_OBSERVED;
	return 0;
}

int phub_scout_decide(phub_scout_t *scout, struct phub_scout_decision *decision)
{
	struct scout_decision own;
	int rc;

	if (!scout || scout->stage == ALONE_OPEN)
		return alone_refuse(-ENODATA, "nothing was observed in this window: call phub_scout_observe()");
	scout->next = scout->scout;
	rc = scout_observe(&scout->next, scout->reports, scout->sites, &own);
	if (rc < 0)
		return alone_refuse(rc, "these reports cannot be observed");
	rc = options_tell(&own, decision, api_last_error());
	if (rc == 0)
		scout->stage = ALONE_DECIDED;
	return rc;
}

int phub_scout_apply(phub_scout_t *scout)
{
	if (!scout || scout->stage != ALONE_DECIDED)
		return alone_refuse(-ENODATA, "nothing was decided in this window: call phub_scout_decide()");
	scout->scout = scout->next;
	scout->stage = ALONE_OPEN;
	return 0;
}

int phub_scout_save(const phub_scout_t *scout, void *out, size_t bytes)
{
	if (!scout)
		return alone_refuse(-EINVAL, "the handle is NULL");
	if (out && bytes < SCOUT_SAVED_BYTES)
		return alone_refuse(-ENOSPC, "its state takes more bytes; phub_scout_save() with NULL tells how many");
	if (out)
		scout_save(&scout->scout, out);
	return (int)SCOUT_SAVED_BYTES;
}

int phub_scout_load(phub_scout_t *scout, const void *in, size_t bytes)
{
	int rc;

	if (!scout || !in)
		return alone_refuse(-EINVAL, "a handle and a state are needed");
	rc = scout_load(&scout->scout, in, bytes, api_last_error());
	if (rc == 0)
		scout->stage = ALONE_OPEN;
	return rc;
}
