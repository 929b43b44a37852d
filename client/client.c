/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker, step by step: joins the control session, the lanes and the rounds. See client.h.
 */
#include "client/client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/handle.h"
#include "phub/base/clock.h"
#include "transport/reliable.h"

enum { CLIENT_REASON_MS = 500 }; /* a lane ended or was refused: the control session has so long to say why */

int client_open(
	const char *url, const struct phub_options *options, const struct client_env *env, phub_t **out, struct err *e)
{
	struct phub *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, -ENOMEM, "no memory for a handle");
	rc = settings_init(&p->settings, url, options, e);
	if (rc < 0) {
		free(p);
		return rc;
	}
	p->env = *env;
	p->hostbox_fd = -1;
	pthread_mutex_init(&p->lock, NULL);
	drive_init(&p->drive);
	client_session_init(&p->session, &p->env, &p->settings);
	*out = p;
	return 0;
}

void client_close(phub_t *p)
{
	p->session.carries = NULL;
	exchange_fini(&p->exchange);
	client_forget_parted(p);
	client_session_fini(&p->session);
	keyring_clear(&p->keyring);
	ranges_clear(&p->ranges);
	move_fini(&p->move);
	drive_fini(&p->drive);
	if (p->hostbox_fd >= 0)
		close(p->hostbox_fd);
	settings_fini(&p->settings);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

/*
 * Ends the connections of the table before. Not at phub_rekey(): the box takes a worker whose connections have ended,
 * and who sends no table for lost_ms, for lost.
 */
static void client_retire(phub_t *p)
{
	client_stats(p, &p->before);
	p->session.carries = NULL;
	exchange_fini(&p->exchange);
}

/* ---- a box that was lost and comes back ---- */

/*
 * This runs beside the caller, who may be writing a gradient or reading a result in phub_alloc()'s memory: what is
 * mapped stays so until he has heard of it, and asks for other memory.
 */
static void client_part(phub_t *p)
{
	struct transport *t;
	bool given = p->exchange.mapped && !p->parted;

	client_stats(p, &p->before);
	p->session.carries = NULL;
	t = exchange_detach(&p->exchange);
	if (given)
		p->parted = t;
	else if (t)
		t->ops->close(t);
}

void client_forget_parted(phub_t *p)
{
	if (p->parted)
		p->parted->ops->close(p->parted);
	p->parted = NULL;
}

enum { CLIENT_RESUME_PAUSE_MS = 200 }; /* between sessions that the box refuses: it may not have noticed the end yet */

/* What ended the session before, without the words that name this worker: they come first. */
static const char *client_loss(const phub_t *p)
{
	size_t bytes = strlen(p->session.who);
	const char *text = p->loss.text;

	return strncmp(text, p->session.who, bytes) == 0 && strncmp(text + bytes, ": ", 2) == 0 ? text + bytes + 2
												: text;
}

/* What it was: a box that has ended the job, and says why, is there. */
static const char *client_lost(const phub_t *p)
{
	return p->loss.code == -EOWNERDEAD ? "job" : "box";
}

/* May another session do better? The box is gone, or has ended the job because a worker was lost. */
static bool client_may_resume(const phub_t *p, int code)
{
	if (p->settings.resume_ms == 0 || p->left)
		return false;
	return code == -ECONNRESET || code == -EHOSTDOWN || code == -EHOSTUNREACH || code == -ESHUTDOWN ||
	       code == -EOWNERDEAD ||
	       (p->resume_until_ns && (code == -EADDRINUSE || code == -ENOMEM || code == -EADDRNOTAVAIL));
}

/* What it had of the job is worth nothing any more. */
static void client_forget_rounds(phub_t *p)
{
	client_part(p);
	p->ran = p->ran || p->running;
	p->running = false;
	p->refused = (struct err){0};
	p->pick = (struct pick){0};
	keyring_forget_rounds(&p->keyring);
	/* The job's checkpoint was made with those; the caller sets what its next round wants. */
	memcpy(p->settings.groups, p->settings.first, p->settings.group_count * sizeof(*p->settings.groups));
}

/* Before its first start a member has nothing of the job that could be stale: its caller need not hear of a loss. */
static bool client_is_new(const phub_t *p)
{
	return !p->frozen && !p->exchange.keyring && (p->session.id || p->resume_until_ns);
}

/* Does the caller wait for what only a box can give him? */
static bool client_lacks(const phub_t *p)
{
	return !p->running || p->exchange.open_keys > 0 || p->session.barrier != p->session.barrier_done;
}

bool client_is_free(const phub_t *p)
{
	return p->stale.code && !p->lacks;
}

/* It had let us in: when it is lost its sibling may do so, which says whose that is in turn. A box that refuses us is
 * there, and asked again. */
static void client_note_boxes(phub_t *p)
{
	if (p->session.id && *p->session.sibling.host) {
		p->last = p->session.at;
		p->sibling = p->session.sibling;
	} else if (*p->sibling.host && strcmp(p->session.at.host, p->sibling.host) == 0 &&
		   p->session.at.port == p->sibling.port) {
		p->sibling = p->last;
		p->last = p->session.at;
	}
}

/* The session is over: in its place comes another, with the same keys. */
static void client_begin_again(phub_t *p, uint64_t now_ns)
{
	bool is_new = client_is_new(p);

	if (!p->stale.code) /* else it is what was lost before */
		p->lacks = client_lacks(p);
	if (!p->resume_until_ns) {
		p->loss = p->session.failure;
		p->resume_until_ns = now_ns + p->settings.resume_ms * NS_PER_MS;
		if (!is_new)
			err_set(&p->stale, -ESTALE, "%s: the %s was lost: %s. Reconnecting; phub_resume() waits for it",
				p->session.who, client_lost(p), client_loss(p));
		p->refusal = (struct err){0};
	} else {
		p->refusal = p->session.failure;
	}
	if (!is_new)
		client_forget_rounds(p);
	client_note_boxes(p);
	client_session_fini(&p->session);
	client_session_init(&p->session, &p->env, &p->settings);
	if (*p->last.host && *p->sibling.host) /* there first, in case that it comes again soon */
		client_session_between(&p->session, &p->last, &p->sibling);
	p->session.resumes = p->ran;
	p->session.retry_ns = now_ns + CLIENT_RESUME_PAUSE_MS * NS_PER_MS;
}

/* What keeps the job from coming again, as the box said last: that a rank is missing, or why it let us not in. */
static const char *client_hindrance(const phub_t *p)
{
	const struct client_subject start = {
		.about = PHUB__ABOUT__ABOUT_START, .round = p->session.generation, .chunk = UINT32_MAX};
	const struct client_notice *n = client_session_notice(&p->session, &start);

	return p->session.state == SESSION_STARTING && n ? n->text : p->refusal.text;
}

/* True: the session is not over after all. */
static bool client_resume_step(phub_t *p, uint64_t now_ns)
{
	struct err e;

	if (p->resume_until_ns && p->running && !p->catches_up) {
		p->resume_until_ns = 0;
		err_set(&p->stale, -ESTALE,
			"%s: the %s was lost (%s) and is there again: phub_resume(), then phub_broadcast() for the "
			"weights, and go on from phub_round()",
			p->session.who, client_lost(p), client_loss(p));
	}
	if (client_is_new(p) && p->session.state >= SESSION_JOINED && p->session.state < SESSION_OVER)
		p->resume_until_ns = 0;
	if (p->resume_until_ns && now_ns >= p->resume_until_ns && p->session.state != SESSION_OVER)
		client_session_fail(&p->session, p->loss.code, "%.170s; it was not back within %.1f s%s%.270s%s",
			client_loss(p), (double)p->settings.resume_ms / 1e3,
			*client_hindrance(p) ? ", and said last: " : "", client_hindrance(p),
			p->session.state == SESSION_STARTING ? "; ranks that had left before do not come again" : "");
	else if (p->session.state == SESSION_OVER && (p->frozen || client_is_new(p)) &&
		 client_may_resume(p, p->session.failure.code))
		client_begin_again(p, now_ns);
	else if (p->resume_until_ns && p->session.state == SESSION_JOINED && client_start_begin(p, &e) < 0)
		client_session_fail(&p->session, e.code, "%s", e.text);
	if (p->session.state != SESSION_OVER)
		return true;
	p->stale = (struct err){0};
	p->resume_until_ns = 0;
	return false;
}

int client_resumed(const phub_t *p)
{
	if (p->session.state == SESSION_OVER)
		return p->session.failure.code;
	return p->resume_until_ns ? -EAGAIN : 0;
}

/* ---- the end of the session ---- */

/* The session is over: from here on nothing touches the caller's memory. What it has of ours stays until close. */
void client_settle(phub_t *p)
{
	if (p->session.state != SESSION_OVER || p->buried)
		return;
	p->buried = true;
	p->running = false;
	if (p->exchange.keyring)
		exchange_drop(&p->exchange);
}

/* Where the session has ended, and another one may take its place, that is begun. Returns 1 when it is over for good.
 */
static unsigned client_revive(phub_t *p, uint64_t now_ns)
{
	if (p->buried)
		return 0;
	if (p->settings.move_ms)
		move_step(p, now_ns);
	if (p->settings.resume_ms)
		client_resume_step(p, now_ns);
	if (p->session.state != SESSION_OVER)
		return 0;
	client_settle(p);
	return 1;
}

void client_look(phub_t *p)
{
	if (p->session.state == SESSION_OVER)
		client_revive(p, p->env.now(p->env.ctx));
}

static void client_lose_lane(phub_t *p)
{
	const struct exchange *x = &p->exchange;
	const struct lane *lane = x->lanes;
	const char *why;

	while (lane->state != LANE_LOST && !lane->finished)
		lane++;
	why = lane->why[0] ? lane->why : lane->error ? strerror(-lane->error) : "orderly";
	if (lane->broke_ns) {
		client_session_fail(&p->session, -ECONNRESET,
			"the connection to core %" PRIu32
			" of box %s broke (%s), and no other came about within %.1f s",
			lane->core, p->session.box, why, (double)p->session.lost_ns / 1e9);
	} else if (lane->error == -ETIMEDOUT) { /* but that is what a wait says that may be called again */
		client_session_broke(&p->session, lane->core, why); /* the box tells the others */
		client_session_fail(&p->session, -EHOSTUNREACH,
			"nothing comes through between here and core %" PRIu32 " of box %s: %s", lane->core,
			p->session.box, why);
	} else {
		client_session_fail(&p->session, -ECONNRESET,
			"box %s closed the connection to its core %" PRIu32 " (%s)", p->session.box, lane->core, why);
	}
}

/*
 * What broke in the exchange ends the session; a lost lane only after the box had time to say why, and a verdict of the
 * box when all is here that it still sends: control session and lanes are connections of their own, and what is said
 * last on one of them may come first.
 */
static void client_judge(phub_t *p, uint64_t now_ns)
{
	struct exchange *x = &p->exchange;

	if (x->failure.code)
		client_session_fail(&p->session, x->failure.code, "%s", x->failure.text);
	else if (p->session.verdict.code &&
		 (!p->running || !exchange_awaits(x) || now_ns >= p->session.verdict_ns + p->session.lost_ns))
		client_session_fail(&p->session, p->session.verdict.code, "%s", p->session.verdict.text);
	else if (x->lost_ns && !p->session.verdict.code && p->session.state == SESSION_STARTED &&
		 now_ns - x->lost_ns > CLIENT_REASON_MS * NS_PER_MS)
		client_lose_lane(p);
}

void client_abandon(phub_t *p)
{
	client_session_fail(&p->session, -ESHUTDOWN, "left the job");
	client_settle(p);
}

const struct err *client_failure(const phub_t *p)
{
	return p->stale.code ? &p->stale : &p->session.failure;
}

/* ---- progress ---- */

int client_introduce(phub_t *p, struct range *range, struct err *e)
{
	struct transport *t = p->exchange.transport;
	void *addr = (void *)range->from;
	size_t bytes = range->to - range->from;
	struct dmabuf buf;
	int rc;

	range->direct = false;
	if (!t || (!range->on_device && !t->ops->mem_register))
		return 0;
	if (!range->on_device)
		return t->ops->mem_register(t, addr, bytes, NULL, e);
	if (!t->ops->mem_register)
		return err_set(e, -ENOTSUP, "transport \"%s\" cannot use memory of a GPU in place; it will be copied",
			t->ops->name);
	buf.fd = device_export(&range->place, addr, bytes, &buf.offset);
	if (buf.fd < 0)
		return err_set(e, buf.fd,
			"this GPU and its driver give NICs no consistent access to %zu bytes at %p; they will be "
			"copied",
			bytes, addr);
	rc = t->ops->mem_register(t, addr, bytes, &buf, e);
	close(buf.fd);
	range->direct = rc == 0;
	return rc;
}

/* A new transport: whose signals are carried, and that learns which memory is registered. */
static int client_introduce_all(phub_t *p, struct err *e)
{
	struct transport *t = p->exchange.transport;
	int rc = 0;

	p->session.carries = t->ops->signal_take ? t : NULL;
	for (struct range *r = p->ranges.first; r && rc == 0; r = r->next) {
		rc = client_introduce(p, r, e);
		if (r->on_device)
			rc = 0; /* else it is copied */
	}
	return rc;
}

/* Start is in: makes the lanes, then waits for their handshakes. */
static unsigned client_connect_lanes(phub_t *p, uint64_t now_ns)
{
	struct exchange *x = &p->exchange;
	struct err e = {0};
	bool fresh = !x->keyring;
	int rc = 0;

	if (p->refused.code) {
		if (now_ns - p->refused_ns <= CLIENT_REASON_MS * NS_PER_MS)
			return 0;
		client_session_fail(&p->session, p->refused.code, "%s", p->refused.text);
		return 1;
	}
	if (fresh)
		rc = exchange_init(x, &p->keyring, &p->session, p->pick.ops, p->pick.address, &e);
	if (fresh && rc == 0)
		rc = client_introduce_all(p, &e);
	if (rc < 0) {
		client_session_fail(&p->session, rc, "%s", e.text);
		return 1;
	}
	rc = exchange_establish(x, p->session.start.window, now_ns, &e);
	if (rc == -EAGAIN)
		return fresh;
	if (rc == 0)
		rc = exchange_catch_up(x, &e);
	if (rc < 0) {
		err_set(&p->refused, rc, "%s", e.text);
		p->refused_ns = now_ns;
	} else {
		p->running = true;
		p->catches_up = x->open_keys > 0;
		p->session.carries = NULL;
		p->session.broken_count = 0;
	}
	return 1;
}

/* Connections that break are made anew: the transport speaks by the control session then. */
static unsigned client_exchange(phub_t *p, uint64_t now_ns)
{
	struct client_session *s = &p->session;
	struct exchange *x = &p->exchange;
	unsigned count = 0;

	for (; s->broken_count > 0; count++) {
		s->broken_count--;
		exchange_broken_there(x, s->broken[s->broken_count].core, s->broken[s->broken_count].why, now_ns);
	}
	if (s->epoch && wire_after(s->epoch, x->group.epoch))
		exchange_raise(x, s->epoch);
	count += exchange_progress(x, now_ns);
	for (uint32_t i = 0; x->broken > 0 && i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		if (lane->untold && s->state == SESSION_STARTED && !s->verdict.code)
			client_session_broke(s, lane->core, lane->why[0] ? lane->why : strerror(-lane->error));
		lane->untold = false;
	}
	s->carries = x->broken > 0 && x->transport->ops->signal_take ? x->transport : NULL;
	return count;
}

unsigned client_progress(phub_t *p, uint64_t now_ns)
{
	unsigned count = client_session_progress(&p->session, now_ns);

	if (p->session.state == SESSION_STARTED && !p->running && !p->session.verdict.code)
		count += client_connect_lanes(p, now_ns);
	if (p->running)
		count += client_exchange(p, now_ns);
	p->catches_up = p->catches_up && p->exchange.open_keys > 0;
	if (p->running || p->session.verdict.code)
		client_judge(p, now_ns);
	return count + client_revive(p, now_ns);
}

uint64_t client_due(const phub_t *p)
{
	uint64_t due = client_session_due(&p->session);
	uint64_t exchange = p->running ? exchange_due(&p->exchange) : exchange_establish_due(&p->exchange);

	if (p->running && p->exchange.lost_ns && !p->session.verdict.code && p->session.state == SESSION_STARTED &&
		p->exchange.lost_ns + CLIENT_REASON_MS * NS_PER_MS < due)
		due = p->exchange.lost_ns + CLIENT_REASON_MS * NS_PER_MS + 1;
	if (p->refused.code && p->refused_ns + CLIENT_REASON_MS * NS_PER_MS < due)
		due = p->refused_ns + CLIENT_REASON_MS * NS_PER_MS + 1;
	if (p->resume_until_ns && p->resume_until_ns < due)
		due = p->resume_until_ns;
	if (move_due(p) < due)
		due = move_due(p);
	return exchange < due ? exchange : due;
}

/* ---- joining and starting ---- */

int client_joined(const phub_t *p)
{
	if (p->session.state == SESSION_OVER)
		return p->session.failure.code;
	return p->session.state >= SESSION_JOINED ? 0 : -EAGAIN;
}

int client_start_begin(phub_t *p, struct err *e)
{
	const char *who = p->session.who;
	int rc;

	if (p->session.state != SESSION_JOINED || (p->frozen && !p->resume_until_ns))
		return err_set(e, -EINVAL,
			"%s: phub_start() comes once after phub_connect(), and again after phub_rekey()", who);
	if (p->keyring.count == 0)
		return err_set(e, -EINVAL, "%s: there are no keys to start with; name them with phub_key()", who);
	rc = pick_transport(&p->session, &p->pick, e);
	if (rc < 0)
		return rc;
	client_retire(p);
	/* Keys that were planned before stay as they are: memory of theirs is given away. */
	if (!p->resume_until_ns) {
		p->chunk_bytes = p->settings.chunk_bytes ? p->settings.chunk_bytes : p->session.chunk_bytes;
		rc = keyring_plan(&p->keyring, p->chunk_bytes, e);
	}
	if (rc < 0)
		return err_set(e, rc, "%s: %s", who, e->text);
	rc = client_session_start(&p->session, &p->keyring, p->settings.groups, p->pick.offer, p->chunk_bytes);
	if (rc < 0)
		return err_set(e, rc, "%s: cannot hand the key table over: %s", who, strerror(-rc));
	memcpy(p->settings.table, p->settings.groups, p->settings.group_count * sizeof(*p->settings.table));
	p->frozen = true;
	p->hyper_changed = false;
	return 0;
}

int client_started(const phub_t *p)
{
	if (p->session.state == SESSION_OVER)
		return p->session.failure.code;
	return p->running && !p->catches_up ? 0 : -EAGAIN;
}

int client_moved(const phub_t *p)
{
	if (p->session.state == SESSION_OVER)
		return p->session.failure.code;
	return p->move.until_ns ? -EAGAIN : 0;
}

int client_rekey(phub_t *p, struct err *e)
{
	if (p->move.until_ns)
		return err_set(e, -EBUSY, "%s: the job moves to the standby of its box", p->session.who);
	if (p->exchange.open_keys)
		return err_set(e, -EBUSY,
			"%s: %" PRIu32 " keys have rounds in flight; wait for them before phub_rekey()", p->session.who,
			p->exchange.open_keys);
	if (p->frozen && !p->running)
		return err_set(e, -EINVAL, "%s: phub_rekey() while phub_start() is under way", p->session.who);
	exchange_unpin(&p->exchange);
	keyring_clear(&p->keyring);
	p->refused = (struct err){0};
	p->running = false;
	p->frozen = false;
	client_session_restart(&p->session);
	return 0;
}

/* ---- rounds ---- */

/* The box learns of changed hyper-parameters before the first push that names them. */
static void client_tell_hyper(phub_t *p)
{
	if (!p->hyper_changed)
		return;
	p->hyper_changed = false;
	move_tell_hyper(p, ++p->exchange.hyper);
}

/* Which GPU is it whose memory this is? The driver is asked, unless the caller has registered it. */
static int client_find_device(
	phub_t *p, const void *addr, const struct range *range, struct device **out, struct err *e)
{
	struct device_place place;
	struct err why;
	int rc;

	*out = NULL;
	if (range ? !range->on_device : !device_holds(addr, &place))
		return 0;
	rc = devices_get(&p->exchange.devices, range ? &range->place : &place, out, &why);
	return rc < 0 ? err_set(e, rc, "%s: %s", p->session.who, why.text) : 0;
}

int client_copy_result(phub_t *p, int key, void *dst, struct err *e)
{
	struct device *device;
	int rc = client_find_device(p, dst, ranges_find(&p->ranges, dst, p->keyring.keys[key].bytes), &device, e);

	return rc < 0 ? rc : exchange_copy_result(&p->exchange, (uint32_t)key, dst, device, e);
}

/* Has the box weights that this worker, which came to a job that ran, has not got? */
static bool client_visits(const phub_t *p, const struct key *key)
{
	const struct client_start *start = &p->session.start;
	uint32_t index = (uint32_t)(key - p->keyring.keys);

	return start->joined && p->exchange.optimizer && !key->weights &&
	       start->rounds[start->round_count > 1 ? index : 0] > 0;
}

/* The box has ended the job. Who comes back to it, or goes on elsewhere, does so now, and hears no other word of it. */
static int client_heed_verdict(phub_t *p, struct err *e)
{
	const struct err *verdict = &p->session.verdict;

	move_now(p, p->env.now(p->env.ctx));
	if (verdict->code && client_may_resume(p, verdict->code)) {
		client_session_fail(&p->session, verdict->code, "%s", verdict->text);
		client_look(p);
		if (p->stale.code)
			return err_set(e, p->stale.code, "%s", p->stale.text);
		return err_set(e, p->session.failure.code, "%s", p->session.failure.text);
	}
	return verdict->code ? err_set(e, verdict->code, "%s", verdict->text) : 0;
}

int client_round(phub_t *p, int index, enum wire_type type, const void *src, void *dst, int priority, struct err *e)
{
	const struct key *key = &p->keyring.keys[index];
	struct exchange_round r = {.key = (uint32_t)index, .type = type, .src = src, .dst = dst, .priority = priority};
	int rc;

	if (type == WIRE_PULL ? !dst : !src)
		return err_set(e, -EINVAL, "%s: key '%s': the memory to exchange is NULL", p->session.who, key->name);
	if (p->session.verdict.code && client_heed_verdict(p, e) < 0)
		return e->code;
	if (p->exchange.given_up)
		return err_set(e, -ESHUTDOWN, "%s: key '%s': this worker is leaving", p->session.who, key->name);
	if (type == WIRE_INIT && client_visits(p, key)) { /* the weights are there already: it gets them, too */
		r = (struct exchange_round){.key = (uint32_t)index, .type = WIRE_PULL, .dst = (void *)(uintptr_t)src};
		src = NULL;
		dst = r.dst;
	} else if (type == WIRE_INIT && p->exchange.quorum) {
		/* Where the job goes on at a standby others may have closed rounds before the root has heard of its
		 * own: it goes on from the weights after these, as they do. */
		r.dst = (void *)(uintptr_t)src;
		dst = r.dst;
	}
	rc = exchange_check(&p->exchange, &r, e);
	if (rc < 0)
		return rc;
	if (p->ranges.first) {
		r.src_range = src ? ranges_find(&p->ranges, src, key->bytes) : NULL;
		r.dst_range = dst ? ranges_find(&p->ranges, dst, key->bytes) : NULL;
	}
	if (p->exchange.open_keys == 0)
		device_look();
	rc = client_find_device(p, src, r.src_range, &r.src_device, e);
	if (rc == 0)
		rc = client_find_device(p, dst, r.dst_range, &r.dst_device, e);
	if (rc < 0)
		return rc;
	client_tell_hyper(p);
	rc = exchange_begin(&p->exchange, &r, e);
	client_look(p);
	if (rc == 0 && p->stale.code)
		rc = err_set(e, p->stale.code, "%s", p->stale.text);
	else if (rc == 0 && p->session.state == SESSION_OVER)
		rc = err_set(e, p->session.failure.code, "%s", p->session.failure.text);
	return rc;
}

/* ---- waiting ---- */

/* The session is over: was the round done before? */
static bool client_done(const phub_t *p, int index)
{
	bool done = false;

	if (index != PHUB_ALL)
		return exchange_is_unclaimed(&p->exchange, &p->keyring.keys[index]);
	for (uint32_t i = 0; i < p->keyring.count; i++) {
		if (p->keyring.keys[i].given_up)
			return false;
		done = done || exchange_is_unclaimed(&p->exchange, &p->keyring.keys[i]);
	}
	return done;
}

void client_claim(phub_t *p, int index)
{
	if (index == PHUB_ALL)
		p->exchange.claims++;
	else
		p->keyring.keys[index].claimed = true;
}

int client_idle(const phub_t *p, int key)
{
	if (p->stale.code)
		return p->stale.code;
	if (p->session.state == SESSION_OVER)
		return client_done(p, key) ? 1 : p->session.failure.code;
	if (p->exchange.given_up)
		return 0; /* another thread leaves: what was in flight is not done, as the session's end will say */
	if (key == PHUB_ALL)
		return p->exchange.open_keys == 0;
	return !exchange_is_open(&p->exchange, &p->keyring.keys[key]);
}

void client_barrier_begin(phub_t *p)
{
	client_session_barrier(&p->session);
	client_look(p);
}

int client_barrier_passed(const phub_t *p)
{
	if (p->stale.code)
		return p->stale.code;
	if (p->session.barrier == p->session.barrier_done)
		return 0; /* whatever came after it */
	return p->session.state == SESSION_OVER ? p->session.failure.code : -EAGAIN;
}

void client_barrier_end(phub_t *p)
{
	p->session.barrier_told = p->session.barrier;
}

void client_hurry(phub_t *p)
{
	move_now(p, p->env.now(p->env.ctx));
	if (p->session.verdict.code)
		client_abandon(p);
}

void client_leave_begin(phub_t *p)
{
	bool away; /* the box was lost, and is not there again */

	client_hurry(p);
	p->left = true;
	away = client_is_free(p) && !p->running;
	if (client_is_free(p))
		p->stale = (struct err){0};
	p->resume_until_ns = 0;
	if (away || (p->session.state < SESSION_JOINED && !p->move.until_ns))
		client_abandon(p);
	client_claim(p, PHUB_ALL);
	if (p->session.state >= SESSION_LEAVING)
		return;
	if (p->exchange.keyring)
		exchange_give_up(&p->exchange);
	if (!p->move.until_ns) /* else when it is done */
		client_session_leave(&p->session, !p->unfinished);
}

int client_left(const phub_t *p)
{
	return p->session.state == SESSION_OVER ? 0 : -EAGAIN;
}

static void client_stats_datagrams(const struct reliable_counters *n, struct phub_stats *stats)
{
	if (!n)
		return;
	stats->datagrams += n->sent;
	stats->datagrams_resent += n->resent;
	for (unsigned why = 0; why < RELIABLE_DROPS; why++)
		stats->datagrams_dropped += n->dropped[why];
}

void client_stats(const phub_t *p, struct phub_stats *stats)
{
	const struct exchange *x = &p->exchange;
	const struct phub_stats *before = &p->before;
	const struct queue_counters none = {0}, *work = x->group.queue ? &x->group.queue->counters : &none;

	*stats = (struct phub_stats){
		.pushed_bytes = before->pushed_bytes + x->group.pushed_bytes,
		.pulled_bytes = before->pulled_bytes + x->pulled_bytes,
		.copied_bytes = before->copied_bytes + x->copied_bytes + x->group.copied_bytes,
		.pushes = before->pushes + x->group.pushes,
		.results = before->results + x->results,
		.coded_pushes = before->coded_pushes + x->group.coded,
		.coded_results = before->coded_results + x->coded_results,
		.rounds = before->rounds + x->rounds,
		.resent = before->resent + x->group.resent,
		.wait_ns = p->wait_ns,
		.posts = before->posts + work->posts,
		.doorbells = before->doorbells + work->doorbells,
		.signalled = before->signalled + work->signalled,
		.reconnects = before->reconnects + x->reconnects,
		.registrations = before->registrations + (x->transport ? x->transport->registrations : 0),
		.moves = p->move.count,
		.datagrams = before->datagrams,
		.datagrams_resent = before->datagrams_resent,
		.datagrams_dropped = before->datagrams_dropped,
	};
	client_stats_datagrams(x->group.queue ? x->group.queue->datagrams : NULL, stats);
}
