/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One box above, for all jobs.
 */
#include "phub/control/above.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/control.h"
#include "phub/control/job.h"
#include "phub/control/parent.h"
#include "transport/call.h"

void above_init(struct control *c)
{
	const struct config *config = c->config;

	c->above = (struct above){.there = config->uplink[0], .known = config->uplink[0] && !config->uplink_name[0]};
	c->above.place.at = config->uplinks[0].at;
	c->above.place.tls = config->uplinks[0].tls;
}

bool above_is_root(const struct control *c)
{
	return c->above.epoch != 0;
}

uint64_t above_lease_now_ns(const struct control *c)
{
	return c->box->env.lease_clock ? c->box->env.lease_clock() : c->now_ns;
}

uint64_t above_epoch(const struct control *c)
{
	return c->above.epoch ? c->above.epoch : !c->above.there && !c->config->root[0];
}

const char *above_root_name(const struct control *c, char out[ABOVE_ROOT_BYTES])
{
	if (c->config->root[0])
		snprintf(out, ABOVE_ROOT_BYTES, "the root '%s'", c->config->root);
	else
		snprintf(out, ABOVE_ROOT_BYTES, "the root");
	return out;
}

/* ---- whether this box is the root ---- */

/* Nothing is committed meanwhile, in jobs that end here. */
static void above_hold(struct control *c, bool hold)
{
	for (struct job *job = c->jobs; job; job = job->next) {
		const struct mail mail = {.kind = MAIL_PAUSE, .value = hold || job->paused};

		if (job->state == JOB_RUNNING && !job->parent && !job->mirror)
			generation_post(job->generation, c->box, &mail);
	}
}

/* Does anything here still write to checkpoint targets? */
static bool above_keeps(const struct control *c)
{
	bool keeps = c->keepers != NULL;

	for (const struct job *job = c->jobs; job; job = job->next)
		keeps = keeps || job->keeper;
	return keeps;
}

/* Cores look at it before each commit: they may run before control does, when all of the box stood still. */
static void above_tell_cores(const struct control *c)
{
	uint64_t until_ns = c->above.epoch && !c->above.doubt_ns ? c->above.until_ns : 0;

	for (unsigned i = 0; i < c->box->core_count; i++)
		lease_extend(&c->box->cores[i]->lease, until_ns);
}

void above_doubt(struct control *c, const char *why)
{
	struct above *a = &c->above;

	if (!a->epoch || a->doubt_ns)
		return;
	a->doubt_ns = c->now_ns;
	a->until_ns = 0;
	above_tell_cores(c);
	above_hold(c, true);
	log_warn(
		"%s, and another may be the root '%s' soon: its jobs are held until it is known", why, c->config->root);
}

void above_step(struct control *c)
{
	struct above *a = &c->above;
	char why[128];

	targets_step(&c->box->targets, c->now_ns);
	if (!a->epoch && !a->assumes && c->box->targets.wanted && !above_keeps(c))
		targets_give(&c->box->targets);
	if (a->there && c->box->locks.count > 0 && !above_keeps(c))
		checkpoint_unlock_targets(&c->box->locks);
	if (!a->epoch || above_lease_now_ns(c) < a->until_ns)
		return;
	if (!a->doubt_ns) {
		above_doubt(c, "etcd was not heard for nearly the time of this box's lease");
	} else if (c->now_ns >= a->doubt_ns + 2 * c->config->etcd_ttl_ms * NS_PER_MS) {
		snprintf(why, sizeof(why), "etcd was not heard for %.0f s more",
			(double)(c->now_ns - a->doubt_ns) / 1e9);
		above_depose(c, NULL, why);
	}
}

uint64_t above_next(const struct control *c)
{
	const struct above *a = &c->above;
	uint64_t now_ns;

	if (!a->epoch || a->doubt_ns)
		return CLOCK_NEVER;
	now_ns = above_lease_now_ns(c);
	return a->until_ns > now_ns ? c->now_ns + (a->until_ns - now_ns) : c->now_ns;
}

int above_assume(struct control *c, uint64_t epoch, uint64_t until_ns, struct err *e)
{
	struct above *a = &c->above;
	int rc = targets_take(&c->box->targets, c->now_ns, e);

	a->assumes = true;
	if (rc < 0)
		return rc;
	if (above_lease_now_ns(c) >= until_ns)
		return err_set(e, -EAGAIN, "its lease in etcd is over");
	a->assumes = a->there = a->known = false;
	a->epoch = epoch;
	a->until_ns = until_ns;
	a->doubt_ns = 0;
	above_tell_cores(c);
	log_info("this box is the root '%s' now, of epoch %" PRIu64, c->config->root, epoch);
	for (struct job *job = c->jobs; job; job = job->next)
		parent_promoted(job);
	return 0;
}

void above_decline(struct control *c)
{
	c->above.assumes = false;
	c->again = true; /* what it has is given back */
}

void above_renew(struct control *c, uint64_t until_ns)
{
	struct above *a = &c->above;

	a->until_ns = until_ns > a->until_ns ? until_ns : a->until_ns;
	if (!a->doubt_ns || above_lease_now_ns(c) >= a->until_ns) {
		above_tell_cores(c);
		return;
	}
	log_info("this box is the root '%s' still, of epoch %" PRIu64 ": its jobs go on, after %.1f s", c->config->root,
		a->epoch, (double)(c->now_ns - a->doubt_ns) / 1e9);
	a->doubt_ns = 0;
	above_tell_cores(c);
	above_hold(c, false);
}

void above_depose(struct control *c, const struct above_place *by, const char *why)
{
	struct above *a = &c->above;
	char box[420] = "no box is known to be", root[ABOVE_ROOT_BYTES];

	above_root_name(c, root);
	if (by && by->box[0])
		snprintf(box, sizeof(box), "box '%s' at %s:%u is, of epoch %" PRIu64, by->box, by->at.host, by->at.port,
			by->epoch);
	else if (by)
		snprintf(box, sizeof(box), "the box at %s:%u is, of epoch %" PRIu64, by->at.host, by->at.port,
			by->epoch);
	log_warn("this box is %s no more (%s); %s", root, why, box);
	a->there = true;
	a->known = false;
	a->epoch = a->until_ns = a->doubt_ns = 0;
	above_tell_cores(c);
	above_missed(c, "");
	for (struct job *job = c->jobs; job; job = job->next)
		if (!job->parent && !job->mirror && (job->reference || job->generation))
			job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1,
				"its box is %s no more (%s), and %s. The job goes on there from its checkpoint, where "
				"both have the same checkpoint_targets",
				root, why, box);
}

bool above_holds(const struct job *job)
{
	return job->control->above.doubt_ns && !job->parent && !job->mirror && job->state == JOB_RUNNING;
}

/* ---- a root without etcd ---- */

static bool above_is_at(const struct above *a, const struct above_place *place)
{
	return a->known && a->place.epoch == place->epoch && a->place.at.port == place->at.port &&
	       a->place.tls == place->tls && strcmp(a->place.at.host, place->at.host) == 0;
}

/* Who is called next is called as the first, and what there was to do is done. */
static void above_start_over(struct above *a)
{
	a->failed = 0;
	a->reaches = false;
	a->heirs[0] = a->advice[0] = '\0';
}

void above_begin(struct control *c, uint64_t epoch)
{
	struct above *a = &c->above;

	above_start_over(a);
	a->there = a->known = false;
	a->epoch = a->seen = epoch;
	a->until_ns = CLOCK_NEVER;
	a->doubt_ns = 0;
}

void above_promote(struct control *c, uint64_t epoch, const char *by)
{
	unsigned count = 0;

	for (struct job *job = c->jobs; job; job = job->next)
		count += job->state != JOB_ENDING;
	above_begin(c, epoch);
	log_warn("this box is the root now, of epoch %" PRIu64 ": promoted by %s; it has %u job%s", epoch, by, count,
		count == 1 ? "" : "s");
	for (struct job *job = c->jobs; job; job = job->next)
		parent_promoted(job);
}

/* Places that options or the rack file name, beside this box itself. */
static unsigned above_place_count(const struct control *c)
{
	unsigned self;

	return c->config->racks_uplink ? box_racks(c->box, &self)->box_count - 1 : c->config->uplink_count;
}

/* Those, and the one that the checkpoint targets name. */
static unsigned above_roots(const struct control *c)
{
	return above_place_count(c) + (c->above.named.epoch > 0);
}

static struct above_place above_place(const struct control *c, unsigned number)
{
	const struct config *config = c->config;
	struct above_place place = {.tls = config->uplinks[0].tls};
	const struct rack_box *box;
	unsigned self;

	if (number >= above_roots(c)) {
		place.at = c->above.sibling.at;
		place.tls = c->above.sibling.tls;
	} else if (number >= above_place_count(c)) {
		place = c->above.named;
		place.epoch = 0;
	} else if (config->racks_uplink) {
		box = &box_racks(c->box, &self)->boxes[number];
		box += number >= self;
		snprintf(place.box, sizeof(place.box), "%s", box->name);
		snprintf(place.at.host, sizeof(place.at.host), "%s", box->host);
		place.at.port = box->port;
	} else {
		place.at = config->uplinks[number].at;
		place.tls = config->uplinks[number].tls;
	}
	return place;
}

/* Those, and the sibling of one that let us in. */
static unsigned above_choices(const struct control *c)
{
	return above_roots(c) + (c->above.sibling.at.host[0] != '\0');
}

unsigned above_target(const struct control *c, struct call_target *target)
{
	const struct above *a = &c->above;
	bool first = a->at == 0 && above_place_count(c) > 0;

	target->host = a->place.at.host;
	target->port = a->place.at.port;
	target->tls = a->place.tls;
	target->root = a->place.epoch;
	if (!c->config->uplink_name[0] && above_roots(c) > 1 && a->at < above_roots(c))
		target->least = first || a->seen ? a->seen : 1;
	return a->at;
}

/* ---- when the root may be dead ---- */

bool above_is_promotable(const struct control *c)
{
	return c->box->promotion && !above_epoch(c);
}

bool above_reaches(const struct control *c)
{
	struct parent_report above;

	for (const struct job *job = c->jobs; job; job = job->next)
		if (job->state != JOB_ENDING && parent_describe(job, &above) && above.state != PARENT_DIALLING)
			return true;
	return false;
}

/* As an operator calls it. */
static void above_write_self(const struct control *c, char *out, size_t bytes)
{
	const struct config_listen *at = &c->config->advertise_at;
	const char *bound = c->box->listener_count > 0 ? c->box->listeners[0].bound : "";
	char name[65] = "";
	unsigned self;
	const struct racks *racks = box_racks(c->box, &self);
	const char *host = racks ? racks->boxes[self].host : at->host;
	unsigned port = racks ? racks->boxes[self].port : at->port;

	if (bound[0] == '*') /* by its name others may know where that is */
		gethostname(name, sizeof(name) - 1);
	if (host[0])
		snprintf(out, bytes, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
	else
		snprintf(out, bytes, "%s%s", name, bound + (name[0] != '\0'));
}

/* The box that the checkpoint targets name may be one of the others, too. */
static bool above_has_heir(const struct above *a, const char *box)
{
	size_t bytes = strlen(box);

	for (const char *at = a->heirs; *at; at += strcspn(at, " ") + 1)
		if (strncmp(at, box, bytes) == 0 && at[bytes] == ',')
			return true;
	return false;
}

void above_hear(struct control *c, unsigned at, const Phub__Error *error)
{
	struct above *a = &c->above;
	size_t length = strlen(a->heirs), more;
	char box[340];

	if (at != a->at || at >= above_roots(c))
		return;
	a->reaches = a->reaches || error->reaches;
	above_name(c, box, sizeof(box));
	more = strlen(box);
	if (error->promotable && !above_has_heir(a, box) && length + more + sizeof(", ") <= sizeof(a->heirs)) {
		memcpy(a->heirs + length, box, more);
		memcpy(a->heirs + length + more, ", ", sizeof(", "));
	}
}

/* Of all that may be promoted: this one first. False: none is known. */
static bool above_write_heirs(const struct control *c, char *out, size_t bytes)
{
	const char *heirs = c->above.heirs;
	char self[340] = "";
	size_t first = strcspn(heirs, ","), length = strlen(heirs);

	if (above_is_promotable(c))
		above_write_self(c, self, sizeof(self));
	else
		snprintf(self, sizeof(self), "%.*s", (int)first, heirs);
	if (!above_is_promotable(c) && length > 0)
		heirs += first + 2;
	length = strlen(heirs);
	snprintf(out, bytes, length ? "`phub promote %s` (or %.*s)" : "`phub promote %s`", self,
		length ? (int)length - 2 : 0, heirs);
	return self[0] != '\0';
}

/* After a turn in which nobody was the root. */
static void above_conclude(struct control *c)
{
	struct above *a = &c->above;
	char heirs[ERR_TEXT_MAX - 120], was[ERR_TEXT_MAX];

	memcpy(was, a->advice, sizeof(was));
	a->advice[0] = '\0';
	if (!c->config->uplink_name[0] && !c->config->hostbox_fd && !a->reaches && !above_reaches(c)) {
		if (above_write_heirs(c, heirs, sizeof(heirs)))
			snprintf(a->advice, sizeof(a->advice), "if the root is dead, %s makes another box the root",
				heirs);
		else if (above_roots(c) > 1)
			snprintf(a->advice, sizeof(a->advice),
				"if the root is dead, start it again: no box that answers could be promoted (phub "
				"promote), as none has checkpoint_targets");
	}
	if (a->advice[0] && strcmp(a->advice, was) != 0)
		log_warn("jobs here wait for the root: %s", a->advice);
	a->heirs[0] = '\0';
	a->reaches = false;
}

const char *above_advise(const struct control *c, char *out, size_t bytes)
{
	char self[340] = "BOX";

	out[0] = '\0';
	if (c->config->uplink_name[0] || c->config->hostbox_fd || !c->above.seen)
		return out;
	if (above_is_promotable(c))
		above_write_self(c, self, sizeof(self));
	else if (above_roots(c) < 2)
		return out;
	snprintf(out, bytes, "; if it is dead, `phub promote %s` makes another box the root", self);
	return out;
}

/* ---- who is called ---- */

/* What each said of this turn. */
static void above_note(struct above *a, const char *why)
{
	const struct config_listen *at = &a->place.at;
	size_t length = a->failed > 0 ? strlen(a->why) : 0;

	snprintf(a->why + length, sizeof(a->why) - length,
		strchr(at->host, ':') ? "%s[%s]:%u: %.150s" : "%s%s:%u: %.150s", length ? "; " : "", at->host, at->port,
		why);
}

bool above_at_sibling(const struct control *c)
{
	return !c->config->uplink_name[0] && c->above.at > 0 && c->above.at >= above_roots(c);
}

bool above_failed(struct control *c, unsigned at, bool answered, const char **why)
{
	struct above *a = &c->above;
	unsigned count = answered && !above_at_sibling(c) ? above_roots(c) : above_choices(c);

	if (c->config->uplink_name[0])
		return false;
	if (count < 2) {
		above_conclude(c);
		return false;
	}
	if (at != a->at) /* another job was faster */
		return true;
	above_note(a, *why);
	a->at = (at + 1) % count;
	a->place = above_place(c, a->at);
	if (++a->failed < count)
		return true;
	a->failed = 0;
	above_conclude(c);
	*why = a->why;
	return false;
}

/* By what the options and the rack file say: nothing is looked up, which would block. */
static bool above_is_here(const struct control *c, const char *host, uint16_t port)
{
	const struct config *config = c->config;
	bool here = config->advertise_at.port == port && strcasecmp(config->advertise_at.host, host) == 0;
	unsigned self;
	const struct racks *racks = box_racks(c->box, &self);

	if (racks)
		here = here || (racks->boxes[self].port == port && strcasecmp(racks->boxes[self].host, host) == 0);

	for (unsigned i = 0; i < config->listen_count; i++)
		here = here || (config->listen[i].port == port && strcasecmp(config->listen[i].host, host) == 0);
	return here;
}

static void above_take_sibling(struct control *c, const struct box_call *call)
{
	struct above *a = &c->above;
	struct config_box *s = &a->sibling;
	uint16_t port;
	const char *host = box_call_sibling(c, call, &port);

	if (above_at_sibling(c)) /* which keeps both */
		return;
	*s = (struct config_box){.tls = a->place.tls};
	if (!host || strlen(host) >= sizeof(s->at.host) || above_is_here(c, host, port))
		return;
	memcpy(s->at.host, host, strlen(host) + 1);
	s->at.port = port;
}

int above_welcomed(struct job *job, const struct box_call *call, struct err *e)
{
	struct control *c = job->control;
	struct above *a = &c->above;
	uint64_t seen = a->seen, epoch = box_call_root(c, call);
	char is[340], text[420];

	if (c->config->uplink_name[0])
		return 0;
	above_name(c, is, sizeof(is));
	if (epoch && epoch < seen)
		return err_set(e, -ESTALE,
			"it is the root of epoch %" PRIu64 ", and one of epoch %" PRIu64
			" was promoted since: it is to be started again, with the same checkpoint_targets as that",
			epoch, seen);
	above_start_over(a);
	above_take_sibling(c, call);
	if (above_at_sibling(c))
		log_warn("job '%s' takes part at %s, the sibling of the box above, which does not answer", job->name,
			is);
	if (epoch <= seen)
		return 0;
	a->seen = epoch;
	snprintf(text, sizeof(text), "the root is the box at %s now, of epoch %" PRIu64, is, epoch);
	if (seen || epoch > 1)
		log_info("uplink: %s", text);
	for (struct job *other = c->jobs; seen && other; other = other->next)
		if (other != job)
			parent_moved(other, text);
	return 0;
}

void above_follow(struct control *c, const struct above_place *place)
{
	struct above *a = &c->above;
	bool news = place->epoch > a->seen;
	bool moves = !above_is_at(a, &(struct above_place){.at = place->at, .tls = place->tls});
	char box[CONFIG_NAME_BYTES + 8] = "the box", is[340], text[500];

	a->there = a->known = true;
	a->named = *place;
	a->seen = news ? place->epoch : a->seen;
	above_start_over(a);
	if (moves) {
		a->at = above_place_count(c);
		a->place = above_place(c, a->at);
	}
	above_name(c, is, sizeof(is));
	if (place->box[0])
		snprintf(box, sizeof(box), "box '%s'", place->box);
	snprintf(text, sizeof(text), "the root is %s at %s now, of epoch %" PRIu64, box, is, place->epoch);
	if (news || moves)
		log_warn("%s, as checkpoint_targets say: this one is below it", text);
	for (struct job *job = c->jobs; moves && job; job = job->next)
		parent_moved(job, news ? text : NULL);
}

/* ---- where the box above is ---- */

void above_found(struct control *c, const struct above_place *place)
{
	struct above *a = &c->above;
	uint64_t epoch = a->place.epoch;
	char is[340], text[600];

	if (above_is_at(a, place))
		return;
	a->place = *place;
	a->known = true;
	above_name(c, is, sizeof(is));
	if (place->epoch)
		snprintf(text, sizeof(text), "the root '%s' is box '%s' at %s now, of epoch %" PRIu64,
			c->config->uplink_name, place->box, is, place->epoch);
	else
		snprintf(text, sizeof(text), "the box above is at %s now", is);
	log_info("uplink %s: %s", c->config->uplink, text);
	if (place->epoch < epoch)
		log_warn("the root's epoch was %" PRIu64 " before: etcd has lost its data, or has become another",
			epoch);
	for (struct job *job = c->jobs; job; job = job->next)
		parent_moved(job, place->epoch != epoch ? text : NULL);
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

/* Has nobody to call it but its own host? */
static bool above_is_leaf(const struct control *c)
{
	if (c->config->hostbox_fd)
		return true;
	return above_is_loopback(c->config->listen[above_listener(c)].host) && !c->config->advertise[0] &&
	       !above_is_loopback(c->above.place.at.host);
}

struct above_own above_own(const struct control *c)
{
	const struct config *config = c->config;
	const struct box *box = c->box;
	const struct config_listen *at = &config->advertise_at;
	unsigned listener = above_listener(c), self;
	const struct racks *racks = box_racks(box, &self);
	struct above_own own = {.host = "",
		.port = at->port,
		.name = racks ? racks->boxes[self].name : config->box,
		.leaf = above_is_leaf(c)};

	if (!at->port) {
		const char *bound =
			listener < box->listener_count ? strrchr(box->listeners[listener].bound, ':') : NULL;

		at = &config->listen[listener];
		own.port = bound ? (uint16_t)strtoul(bound + 1, NULL, 10) : at->port;
	}
	if (!above_is_any(at->host) && !own.leaf)
		own.host = at->host;
	return own;
}

void above_tell_address(const struct job *job, Phub__Gather *gather)
{
	struct above_own own = above_own(job->control);

	gather->cores = parent_cores(job);
	gather->leaf = own.leaf;
	gather->host = (char *)(uintptr_t)own.host;
	gather->port = own.port;
	gather->name = (char *)(uintptr_t)own.name;
	gather->tls = job->control->config->tls == CONFIG_TLS_REQUIRE;
}
