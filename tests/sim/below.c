/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Their making, what befalls them, and which ends that explains.
 */
#include "tests/sim/below.h"

#include "aggregation/dispatch.h"
#include "client/call.h"
#include "phub/control/job.h"
#include "tests/sim/worker.h"

#include <stdlib.h>
#include <string.h>

enum {
	BELOW_LOST_MS = 3000,  /* boxes and workers that say nothing for so long are lost */
	BELOW_SHORT_MS = 1500, /* a cut of so long is not felt: they say something each second */
	BELOW_LONG_MS = 12000,
};

#define BELOW_BEGUN_NS 1000000000ull /* one that does not start is started again */

/* ---- who is where ---- */

unsigned below_endpoint(const struct world *w, const char *name)
{
	for (unsigned i = 0; i < w->below.count; i++)
		if (strcmp(w->below.boxes[i].name, name) == 0)
			return w->below.boxes[i].host;
	return WORLD_BOX_HOST;
}

/* `number` as plans have it. */
static struct below_box *below_number(struct world *w, unsigned number)
{
	return number ? &w->below.boxes[number - 1] : NULL;
}

static bool below_is_lost(const struct below_box *box)
{
	return !box->box && !box->returns_ns;
}

struct below_box *below_choose(struct world *w, unsigned rank, unsigned life)
{
	struct below_box *box = below_number(w, w->plan->at[rank]);

	if (life == 0 || !w->below.count)
		return box;
	if (!w->plan->hierarchy && oracle_random(&w->below.random) % 2)
		box = below_number(w, (unsigned)(oracle_random(&w->below.random) % (w->below.count + 1)));
	return box && below_is_lost(box) ? NULL : box;
}

/* Is it this one, or below it? */
static bool below_is_under(const struct below_box *box, const struct below_box *top)
{
	while (box && box != top)
		box = box->above;
	return box != NULL;
}

uint64_t below_run(struct world *w)
{
	const struct job *job = world_job(w);

	if (job)
		w->below.run = (world_plan_leases(w->plan) ? w->leases.epoch : w->outage.deaths) << 32 | job->id;
	return w->below.run;
}

uint64_t below_run_of(const struct worker *me)
{
	if (world_plan_promotes(me->world->plan))
		return promote_run(me);
	return world_plan_leases(me->world->plan) ? lease_run(me) : below_run(me->world);
}

/* ---- making them ---- */

static int below_dial_from(
	struct world *w, unsigned from, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	int rc = loop_stream_dial(loop_net_host(w->net, from), below_endpoint(w, host), port, out);

	return rc < 0 ? err_set(e, rc, "dial: %d", rc) : 0;
}

static int below_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct below_box *box = ctx;

	return below_dial_from(box->world, box->host, host, port, out, e);
}

static int below_dial_root(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	return below_dial_from(ctx, WORLD_BOX_HOST, host, port, out, e);
}

static uint64_t below_now(void *ctx)
{
	return loop_net_now(((struct below_box *)ctx)->world->net);
}

static uint64_t below_now_root(void *ctx)
{
	return loop_net_now(((struct world *)ctx)->net);
}

static int below_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct below_box *)arg)->listener, out);
}

static int below_set(struct config *config, const char *name, const char *host, uint64_t value, struct err *e)
{
	char text[80];

	snprintf(text, sizeof(text), "%s=%s%s%llu", name, host, host[0] ? ":" : "", (unsigned long long)value);
	return config_set(config, text, e);
}

static int below_set_lift(struct config *config, const struct world_plan *plan, struct err *e)
{
	char text[32];

	snprintf(text, sizeof(text), "uplink_type=%s", world_plan_lift(plan));
	return config_set(config, text, e);
}

static const char *below_name(const struct below_box *box)
{
	return box ? box->name : "box";
}

static int below_configure_one(struct below_box *box, unsigned cores, struct err *e)
{
	const struct world_plan *plan = box->world->plan;
	int rc;

	config_init(&box->config);
	rc = below_set(&box->config, "cores", "", cores, e);
	if (rc == 0)
		rc = below_set_lift(&box->config, plan, e);
	if (rc == 0)
		rc = below_set(&box->config, "window", "", plan->window, e);
	if (rc == 0)
		rc = below_set(&box->config, "lost_ms", "", BELOW_LOST_MS, e);
	if (rc == 0) /* at another port, others are no other names of this box, and nobody has to look them up */
		rc = below_set(&box->config, "listen", "127.0.0.1", 1, e);
	if (rc == 0 && world_plan_leases(plan) && !box->above)
		rc = box == below_number(box->world, plan->heir) ? lease_configure_root(box->world, &box->config, e)
								 : lease_configure_below(box->world, &box->config, e);
	else if (rc == 0 && world_plan_promotes(plan) && !box->above)
		rc = promote_configure_below(box->world, &box->config, box, e);
	else if (rc == 0)
		rc = below_set(&box->config, "uplink", below_name(box->above), WORLD_CONTROL_PORT, e);
	if (rc == 0)
		rc = below_set(&box->config, "advertise", box->name, WORLD_CONTROL_PORT, e);
	if (rc == 0)
		rc = config_finish(&box->config, e);
	if (rc == 0 && plan->resume) /* as a rack file would say */
		snprintf(box->config.sibling, sizeof(box->config.sibling), "%s:%d", below_name(box->sibling),
			WORLD_CONTROL_PORT);
	return rc;
}

int below_configure(struct world *w, struct err *e)
{
	const struct world_plan *plan = w->plan;
	struct below *b = &w->below;
	char text[64];
	int rc;

	if (!plan->below)
		return 0;
	b->count = plan->below;
	b->random = plan->seed * 77 + 5;
	homes_init(w);
	snprintf(text, sizeof(text), "hierarchy=%s", world_hierarchies[plan->hierarchy]);
	rc = config_set(&w->config, text, e);
	if (rc == 0)
		rc = below_set_lift(&w->config, plan, e);
	if (rc == 0)
		rc = below_set(&w->config, "lost_ms", "", BELOW_LOST_MS, e);
	if (rc == 0 && world_plan_leases(plan))
		rc = lease_configure_root(w, &w->config, e);
	if (rc == 0 && world_plan_promotes(plan))
		rc = promote_configure_root(w, &w->config, e);
	for (unsigned i = 0; rc == 0 && i < b->count; i++) {
		struct below_box *box = &b->boxes[i];

		box->world = w;
		box->host = BELOW_HOST + i;
		box->above = below_number(w, plan->boxes[i].above);
		box->sibling = below_number(w, plan->boxes[i].sibling);
		snprintf(box->name, sizeof(box->name), "rack%u", i + 1);
	}
	for (unsigned i = 0; rc == 0 && i < b->count; i++)
		rc = below_configure_one(&b->boxes[i], plan->boxes[i].cores, e);
	return rc;
}

void below_prepare(struct world *w, struct box_env *root)
{
	if (!w->plan->below || (!w->plan->hierarchy && !world_plan_leases(w->plan) && !world_plan_promotes(w->plan)))
		return;
	if (w->plan->homes)
		homes_write_racks(w);
	w->below.root = (struct client_env){.dial = below_dial_root,
		.now = below_now_root,
		.ctx = w,
		.transports = root->transports,
		.config.loop = root->loop};
	root->calls = &client_call_ops;
	root->calls_arg = &w->below.root;
}

static int below_start(struct below_box *box, struct err *e)
{
	struct world *w = box->world;
	int rc = loop_stream_listen(loop_net_host(w->net, box->host), WORLD_CONTROL_PORT, &box->listener);
	int number = promote_number(w, box);

	box->returns_ns = 0;
	if (rc == 0)
		rc = box_create(&box->config, &box->env, loop_net_now(w->net), &box->box, e);
	return rc == 0 && number >= 0 ? promote_begin(w, (unsigned)number, box->box, e) : rc;
}

int below_open(struct world *w, const struct box_env *root, struct err *e)
{
	char text[64];
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < w->below.count; i++) {
		struct below_box *box = &w->below.boxes[i];

		box->client = (struct client_env){.dial = below_dial,
			.now = below_now,
			.ctx = box,
			.transports = root->transports,
			.config.loop = loop_net_host(w->net, box->host)};
		box->env = *root;
		box->env.loop = loop_net_host(w->net, box->host);
		box->env.disk = promote_number(w, box) >= 0 ? promote_disk(w, 1) : NULL;
		box->env.accept = below_accept;
		box->env.accept_arg = box;
		box->env.calls = &client_call_ops;
		box->env.calls_arg = &box->client;
		box->env.plant = root->plant >= SHARD_PLANT_UNCOUNTED ? root->plant : SHARD_PLANT_NONE;
		rc = dispatch_from_env(&box->env.kernels, text, sizeof(text));
		if (rc == 0)
			rc = below_start(box, e);
	}
	return rc;
}

void below_close(struct world *w)
{
	for (unsigned i = 0; i < w->below.count; i++) {
		struct below_box *box = &w->below.boxes[i];

		if (box->box)
			box_destroy(box->box, loop_net_now(w->net));
		if (box->listener)
			loop_stream_unlisten(box->listener);
		config_fini(&box->config);
	}
}

/* ---- cuts ---- */

static void below_separate(struct world *w, unsigned inside, unsigned outside, bool on)
{
	if (w->below.way == BELOW_BOTH)
		loop_net_partition(w->net, inside, outside, on);
	else if (w->below.way == BELOW_DEAF)
		loop_net_deafen(w->net, outside, inside, on);
	else
		loop_net_deafen(w->net, inside, outside, on);
}

/* Between a host, on that side of the cut, and another one, on the other side. */
static void below_part_hosts(struct world *w, unsigned host, bool inside, unsigned other, bool on)
{
	below_separate(w, inside ? host : other, inside ? other : host, on);
}

/* Between this host, on that side of the cut, and all on the other side. */
static void below_part_host(struct world *w, unsigned host, bool inside, bool on)
{
	const struct below *b = &w->below;

	if (inside)
		below_part_hosts(w, host, inside, WORLD_BOX_HOST, on);
	for (unsigned i = 0; i < b->count; i++)
		if (below_is_under(&b->boxes[i], b->cut) != inside)
			below_part_hosts(w, host, inside, b->boxes[i].host, on);
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (w->workers[rank].host && below_is_under(w->workers[rank].rack, b->cut) != inside)
			below_part_hosts(w, host, inside, w->workers[rank].host->endpoint, on);
}

static void below_part(struct world *w, bool on)
{
	const struct below *b = &w->below;

	for (unsigned i = 0; i < b->count; i++)
		if (below_is_under(&b->boxes[i], b->cut))
			below_part_host(w, b->boxes[i].host, true, on);
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (below_is_under(w->workers[rank].rack, b->cut))
			below_part_host(w, w->workers[rank].host->endpoint, true, on);
}

void below_house(struct world *w, const struct worker *me)
{
	/* An earlier life at this host may have been in another rack. */
	for (unsigned host = 0; w->below.cut && host < w->plan->net.hosts; host++) {
		if (host == me->host->endpoint)
			continue;
		loop_net_partition(w->net, host, me->host->endpoint, false);
		loop_net_deafen(w->net, host, me->host->endpoint, false);
		loop_net_deafen(w->net, me->host->endpoint, host, false);
	}
	if (w->below.cut)
		below_part_host(w, me->host->endpoint, below_is_under(me->rack, w->below.cut), true);
}

static void below_heal(struct world *w)
{
	if (!w->below.cut)
		return;
	below_part(w, false);
	w->below.cut = NULL;
	w->result->healed++;
}

static void below_cut(struct world *w, struct below_box *box, uint64_t now_ns)
{
	static const unsigned until[] = {BELOW_SHORT_MS, 2 * BELOW_LOST_MS, BELOW_LONG_MS};
	struct below *b = &w->below;
	unsigned length = (unsigned)(oracle_random(&b->random) % (w->plan->below_part == PART_BRIEF ? 1 : 3));
	uint64_t ns = 1000000ull * (1 + oracle_random(&b->random) % until[length]);

	b->cut = box;
	b->way = w->plan->one_way ? (enum below_way)(oracle_random(&b->random) % 3) : BELOW_BOTH;
	w->result->one_way += b->way != BELOW_BOTH;
	if (b->heals_ns == 0 || now_ns >= b->heals_ns + BELOW_LOST_MS * NS_PER_MS)
		b->cuts_ns = now_ns;
	b->heals_ns = now_ns + ns;
	box->cut_ns = now_ns;
	for (unsigned i = 0; b->heals_ns - b->cuts_ns > BELOW_SHORT_MS * NS_PER_MS && i < b->count; i++)
		b->boxes[i].struck = b->boxes[i].struck || (b->boxes[i].cut_ns && b->boxes[i].cut_ns >= b->cuts_ns);
	below_part(w, true);
	w->result->cut++;
}

/* ---- deaths ---- */

static void below_bury(struct world *w, struct below_box *box)
{
	int number = promote_number(w, box);

	loop_net_kill(w->net, box->host);
	if (number >= 0)
		storage_fail_after(w->outage.storage, (unsigned)number, 0);
	box_destroy(box->box, loop_net_now(w->net));
	loop_stream_unlisten(box->listener);
	box->box = NULL;
	box->listener = NULL;
	if (number >= 0)
		promote_bury(w, (unsigned)number);
}

void below_kill(struct world *w, struct below_box *box, uint64_t away_ns)
{
	below_bury(w, box);
	box->struck = true;
	box->returns_ns = loop_net_now(w->net) + 1 + away_ns;
	w->result->parted++;
}

/* Its workers die with it, as in a rack without power, where there is nobody to whom they could go. */
static void below_die(struct world *w, struct below_box *box, uint64_t now_ns)
{
	bool goes_on = world_plan_varies(w->plan);

	for (unsigned rank = 0; rank < w->plan->workers && goes_on && !w->plan->resume; rank++) {
		struct worker *me = &w->workers[rank];

		if (me->rack != box || worker_is_gone(me))
			continue;
		worker_kill(me);
		fate_lose(&w->fate, rank, now_ns);
		w->result->died++;
	}
	below_kill(w, box, 0);
	box->returns_ns = 0;
	if (promote_number(w, box) >= 0 || (goes_on && (!w->plan->resume || oracle_random(&w->below.random) % 2)))
		box->returns_ns = now_ns + 1 + oracle_random(&w->below.random) % (w->plan->return_max_ns + 1);
}

static void below_return(struct world *w, struct below_box *box)
{
	struct err e = {0};

	loop_net_revive(w->net, box->host);
	if (below_start(box, &e) == 0)
		return;
	if (box->box && promote_number(w, box) >= 0)
		below_kill(w, box, BELOW_BEGUN_NS);
	else
		world_fail(w, "no box below in its place: %s", e.text);
}

/* ---- what happens ---- */

/* Before that a worker tries to reach its box for as long as its caller has patience. */
bool below_all_started(const struct world *w)
{
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (!worker_is_gone(&w->workers[rank]) && w->workers[rank].phub->session.state < SESSION_STARTED)
			return false;
	return true;
}

static bool below_strike(struct world *w, uint64_t now_ns)
{
	const struct world_plan *plan = w->plan;
	struct below *b = &w->below;
	struct below_box *box;

	if (b->parts == plan->below_parts || b->cut || (b->parts == 0 && !below_all_started(w)) ||
		oracle_random(&b->random) % plan->below_steps)
		return false;
	box = &b->boxes[oracle_random(&b->random) % b->count];
	if (!box->box)
		return false;
	b->parts++;
	if (oracle_random(&b->random) % 4 == 0) { /* its uplinks break: others are made, and nobody hears of it */
		loop_net_break(w->net, box->host, box->above ? box->above->host : WORLD_BOX_HOST);
		return true;
	}
	if (plan->below_part == PART_DEATH || (plan->below_part == PART_ANY && oracle_random(&b->random) % 2))
		below_die(w, box, now_ns);
	else
		below_cut(w, box, now_ns);
	return true;
}

static unsigned below_fate(struct world *w, uint64_t now_ns)
{
	struct below *b = &w->below;

	for (unsigned i = 0; i < b->count; i++) {
		struct below_box *box = &b->boxes[i];

		if (box->box || !box->returns_ns || now_ns < box->returns_ns)
			continue;
		below_return(w, box);
		return 1;
	}
	if (b->cut && now_ns >= b->heals_ns) {
		below_heal(w);
		return 1;
	}
	if (w->plan->homes)
		return homes_step(w, now_ns);
	return w->plan->below_part && below_strike(w, now_ns);
}

unsigned below_step(struct world *w, uint64_t now_ns)
{
	unsigned work = 0;

	if (!w->below.count)
		return 0;
	below_run(w);
	for (unsigned i = 0; i < w->below.count; i++)
		if (w->below.boxes[i].box)
			work += lease_turn(w, w->below.boxes[i].box, now_ns);
	return work + below_fate(w, now_ns);
}

static uint64_t below_due_of(const struct below_box *box)
{
	if (!box->box)
		return box->returns_ns ? box->returns_ns : UINT64_MAX;
	if (lease_rests(box->world, box->box))
		return UINT64_MAX;
	for (unsigned i = 0; i < box->box->core_count; i++)
		for (unsigned j = 0; j < box->box->cores[i]->queue_count; j++)
			box->box->cores[i]->queues[j]->ops->arm(box->box->cores[i]->queues[j]);
	return box_next(box->box);
}

uint64_t below_due(struct world *w)
{
	uint64_t due = w->below.cut ? w->below.heals_ns : homes_due(w);

	for (unsigned i = 0; i < w->below.count; i++) {
		uint64_t of_box = below_due_of(&w->below.boxes[i]);

		due = of_box < due ? of_box : due;
	}
	return due;
}

/* ---- ends ---- */

bool below_disturbs(const struct worker *me, const char *text)
{
	return me->world->below.count && (strstr(text, "try again in a moment") || strstr(text, "runs here already"));
}

/* Was any of them struck? */
static bool below_felt(const struct world *w)
{
	for (unsigned i = 0; i < w->below.count; i++)
		if (w->below.boxes[i].struck)
			return true;
	return false;
}

/* May it be because ranks are lost, and come, in a job at several boxes? */
static bool below_excuses_loss(const struct world *w, const char *text)
{
	if (w->plan->lost == LOST_FAIL || (w->result->died == 0 && !below_felt(w)))
		return false;
	if (strstr(text, "all that had to push") || strstr(text, "first weights"))
		return true;
	if (w->plan->lost == LOST_WAIT && strstr(text, "no other took its place"))
		return true;
	if (w->plan->resume && strstr(text, "it was not back within")) /* others are done, or came too late */
		return true;
	return w->plan->hierarchy && strstr(text, " was lost"); /* the last of a box, or a box */
}

/* Does it name a box that was struck, or the one above it, as who is there no more? */
bool below_excuses(const struct world *w, const char *text)
{
	if (w->plan->homes)
		return homes_excuses(w, text);
	if (below_excuses_loss(w, text))
		return true;
	for (unsigned i = 0; i < w->below.count; i++) {
		const struct below_box *box = &w->below.boxes[i];
		char name[64], above[64];

		snprintf(name, sizeof(name), "%s:%d", box->name, WORLD_CONTROL_PORT);
		snprintf(above, sizeof(above), "box above (uplink %s:%d) was lost: ", below_name(box->above),
			WORLD_CONTROL_PORT);
		if (!box->struck)
			continue;
		if (strstr(text, above) ||
			(strstr(text, name) && (strstr(text, " was lost: ") || strstr(text, "it counts as lost") ||
						       strstr(text, " ended the session") ||
						       strstr(text, "cannot be reached from here"))))
			return true;
	}
	return false;
}

const char *below_settled(struct world *w)
{
	below_heal(w);
	homes_heal(w);
	for (unsigned i = 0; i < w->below.count; i++) {
		const struct below_box *box = &w->below.boxes[i];

		if (box->box && box->box->control.jobs)
			return "a job of a box below";
		if (box->box && !box_balanced(box->box))
			return "books of a box below that do not balance";
	}
	return NULL;
}

void below_tell(const struct world *w)
{
	struct world_result *result = w->result;

	result->below = w->below.count > 0;
	result->homes = w->plan->homes;
	result->several = w->below.count > 1;
	for (unsigned i = 0; i < w->below.count; i++)
		if (w->below.boxes[i].above)
			result->deep = 1;
	result->roots = w->below.count > 0 ? result->box_died : 0;
}
