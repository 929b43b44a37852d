/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of a core: poll, receive, reply, flush, tick. Mail from control is read at tick; nothing else ever
 * reaches a core. An adaptive core that finds nothing yields for a while (on a machine with fewer CPUs than
 * processes that is the fastest hand-over there is), then arms every queue and sleeps in one epoll. One with a queue
 * that can only be polled (dpdk) sleeps by the clock instead, a little longer each time.
 */
#include "phub/core.h"

#include "phub/base/stats.h"
#include "phub/base/clock.h"
#include "phub/base/cpu.h"
#include "phub/commit.h"
#include "phub/detach.h"
#include "phub/link.h"
#include "phub/members.h"
#include "phub/receive.h"
#include "phub/rehome.h"
#include "phub/reply.h"
#include "phub/sealing.h"
#include "phub/snapshot.h"
#include "phub/stepwise.h"
#include "phub/uplink.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define CORE_MAIL_MAX 256
#define CORE_SPIN_NS  50000ull
#define CORE_NAP_NS   1000 /* of a core that nothing can wake: then twice that, ... */
#define CORE_NAP_MAX  100000
#define CORE_SLEEP_MS 100 /* an armed core still looks at its clock: stalls are told in time */

int core_create(const struct core_config *config, struct core **out, struct err *e)
{
	struct core *core = aligned_alloc(64, (sizeof(*core) + 63) / 64 * 64);
	int rc;

	if (!core)
		return err_set(e, -ENOMEM, "core %u: no memory", config->index);
	*core = (struct core){.config = *config, .epoll_fd = -1, .nap_ns = CORE_NAP_NS};
	core->lease.clock = config->clock;
	if (core->config.spin_ns == 0)
		core->config.spin_ns = CORE_SPIN_NS;
	rc = mailbox_create(CORE_MAIL_MAX, &core->inbox);
	if (rc < 0) {
		err_set(e, rc, "core %u: cannot make its mailbox", config->index);
		goto free_core;
	}
	rc = trace_init(&core->trace, config->trace_events);
	if (rc < 0) {
		err_set(e, rc, "core %u: no memory for %u trace events", config->index, config->trace_events);
		goto destroy_inbox;
	}
	core->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (core->epoll_fd < 0) {
		rc = err_set(e, -errno, "core %u: epoll_create1 failed: raise `ulimit -n`", config->index);
		goto fini_trace;
	}
	*out = core;
	return 0;
fini_trace:
	trace_fini(&core->trace);
destroy_inbox:
	mailbox_destroy(core->inbox);
free_core:
	free(core);
	return rc;
}

int core_add_queue(struct core *core, struct queue *queue)
{
	if (core->queue_count == CORE_QUEUES_MAX)
		return -ENOSPC;
	core->queues[core->queue_count++] = queue;
	return 0;
}

void core_add_uplinks(struct core *core, struct queue *queue)
{
	assert(core->uplink_count < CORE_UPLINKS_MAX);
	core->uplinks[core->uplink_count++] = queue;
}

void core_destroy(struct core *core)
{
	assert(!core->shards);
	close(core->epoll_fd);
	trace_fini(&core->trace);
	mailbox_destroy(core->inbox);
	free(core);
}

/* ---- mail ---- */

/* Sends mail to control, or keeps it: then core_mail() reads no more before it is gone. */
static void core_tell(struct core *core, const struct mail *mail)
{
	if (mailbox_send(core->config.control, mail) == 0)
		return;
	core->owed = *mail;
	core->owes_mail = true;
}

static void core_attach(struct core *core, struct shard *shard)
{
	shard->trace = &core->trace;
	shard->plant = (uint8_t)core->config.plant;
	shard->lease = shard->leased ? &core->lease : NULL;
	fair_join(core, shard);
	if (core->config.plant_leak)
		stats_add(&shard->counters.slots_kept, 1);
	shard->next = core->shards;
	core->shards = shard;
}

/* `sums`: accumulators in use. */
static int core_check_books(const struct shard *shard, uint32_t sums, struct err *e)
{
	const struct shard_counters *n = &shard->counters;

	if (n->slots_kept != n->slots_released)
		return err_set(e, -EBADE, "job %s core %u: %llu slots kept, %llu released", shard->spec->name,
			shard->core, (unsigned long long)n->slots_kept, (unsigned long long)n->slots_released);
	if (n->sends != n->sends_done)
		return err_set(e, -EBADE, "job %s core %u: %llu replies sent, %llu completed", shard->spec->name,
			shard->core, (unsigned long long)n->sends, (unsigned long long)n->sends_done);
	if (shard->sum_free + sums != shard->sum_count)
		return err_set(e, -EBADE, "job %s core %u: %u accumulators free and %u in use of %u", shard->spec->name,
			shard->core, shard->sum_free, sums, shard->sum_count);
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		if (shard->links[rank].held != 0)
			return err_set(e, -EBADE, "job %s core %u: rank %u has %u credits out for held slots",
				shard->spec->name, shard->core, rank, shard->links[rank].held);
	return 0;
}

int core_balance(const struct shard *shard, struct err *e)
{
	uint32_t sums = 0;

	for (uint32_t i = 0; i < shard->chunk_count; i++)
		sums += shard->chunks[i].sum != NULL;
	return core_check_books(shard, sums, e);
}

/* A mail that shortens a detachment may come when the shard is home: then it names what is perhaps no shard at all. */
static void core_detach(const struct core *core, const struct mail *mail, uint64_t now_ns)
{
	for (struct shard *shard = core->shards; shard; shard = shard->next)
		if (shard == mail->shard)
			detach_begin(shard, (uint64_t)mail->value, mail->detail != 0, now_ns);
}

static void core_detached(struct core *core, struct shard *shard)
{
	struct mail mail = {
		.kind = MAIL_DETACHED,
		.core = core->config.index,
		.shard = shard,
		.job = shard->spec->id,
		.generation = shard->spec->generation,
	};
	struct shard **at = &core->shards;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		core->untold -= shard->links[rank].end_untold;
	while (*at != shard)
		at = &(*at)->next;
	*at = shard->next;
	fair_leave(shard);
	mail.value = core_check_books(shard, shard->sums_used, NULL);
	core_tell(core, &mail);
}

/* Of a rank that comes anew: no number of an earlier connection may be taken for this one's. */
static void core_forget_answers(struct shard *shard, uint32_t rank, uint64_t serial)
{
	for (uint32_t i = 0; i < shard->chunk_count; i++)
		shard->chunks[i].arrivals[rank].answered = (uint8_t)(serial - 1);
}

static void core_link(struct core *core, const struct mail *mail)
{
	struct link *link = &mail->shard->links[mail->rank];
	struct mail refused = *mail;
	bool fresh = link->fresh;
	int rc = link_open(link, core->queues[mail->value], mail->conn, mail->spec);

	if (rc == 0) {
		link->serial = mail->detail;
		sealing_link(link, mail->sealed ? mail->key : NULL);
		if (fresh)
			core_forget_answers(mail->shard, mail->rank, mail->detail);
		core->untold -= link->end_untold; /* the end of the one before needs no telling any more */
		link->end_untold = false;
		return;
	}
	refused.kind = MAIL_LINK_REFUSED;
	refused.core = core->config.index;
	refused.value = rc;
	core_tell(core, &refused);
}

/* One that is not taken is control's again; in place of one that broke there may be another. */
static void core_uplink(struct core *core, const struct mail *mail)
{
	int rc = uplink_open(mail);
	struct mail refused = *mail;
	const struct uplink *up = &mail->shard->uplinks[mail->rank];

	if (rc == 0)
		return;
	refused.kind = MAIL_UPLINK_ENDED;
	refused.job = mail->shard->spec->id;
	refused.generation = mail->shard->spec->generation;
	refused.value = rc;
	refused.broken = up->broken;
	refused.text[0] = '\0';
	core_tell(core, &refused);
}

static void core_hyper(struct core *core, const struct mail *mail)
{
	struct mail taken = *mail;

	taken.kind = MAIL_HYPER_TAKEN;
	taken.core = core->config.index;
	taken.value = hypers_take(&mail->shard->hypers, mail->table);
	core_tell(core, &taken);
	mail->shard->retry_due = true;
}

static void core_members(struct core *core, const struct mail *mail, uint64_t now_ns)
{
	struct mail done = *mail;

	if (mail->kind == MAIL_HOLD)
		members_hold(mail->shard, mail->members);
	else
		members_go(mail->shard, mail->members, now_ns);
	done.kind = mail->kind == MAIL_HOLD ? MAIL_HELD : MAIL_WENT;
	done.core = core->config.index;
	core_tell(core, &done);
}

static void core_rounds(struct core *core, const struct mail *mail)
{
	struct mail done = *mail;

	snapshot_rounds(mail->shard, mail->snapshot);
	done.kind = MAIL_SNAPPED;
	done.core = core->config.index;
	core_tell(core, &done);
}

static void core_rehome(struct core *core, const struct mail *mail, uint64_t now_ns)
{
	struct mail done = *mail;

	if (mail->rehome)
		rehome_apply(mail->shard, mail->rehome);
	else
		rehome_resume(mail->shard, now_ns);
	done.kind = MAIL_REHOMED;
	done.core = core->config.index;
	core_tell(core, &done);
}

static bool core_is_missing(const struct shard *shard, const struct chunk *chunk, uint32_t rank)
{
	if (spec_stepwise(shard->spec) && chunk->weights)
		return stepwise_missing(chunk, shard, rank);
	return members_takes_part(&chunk->arrivals[rank], chunk->round) &&
	       (chunk->arrivals[rank].state == ARRIVAL_NONE || chunk->arrivals[rank].state == ARRIVAL_PARTIAL);
}

static void core_list_missing(const struct shard *shard, const struct chunk *chunk, struct mail *mail)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		if (!core_is_missing(shard, chunk, rank))
			continue;
		mail->value++;
		mail->missing[rank / 64] |= UINT64_C(1) << (rank % 64);
	}
}

static void core_who(struct core *core, const struct mail *mail)
{
	const struct chunk *chunk = chunk_find(mail->shard, mail->chunk);
	struct mail answer = *mail;

	answer.kind = MAIL_MISSING;
	answer.core = core->config.index;
	answer.value = 0;
	if (chunk && !spec_stepwise(mail->shard->spec) && chunk->round > mail->round)
		answer.value = -1;
	else if (chunk)
		core_list_missing(mail->shard, chunk, &answer);
	core_tell(core, &answer);
}

static void core_read(struct core *core, const struct mail *mail, uint64_t now_ns)
{
	switch (mail->kind) {
	case MAIL_ATTACH:
		core_attach(core, mail->shard);
		break;
	case MAIL_DETACH:
		core_detach(core, mail, now_ns);
		break;
	case MAIL_LINK:
		core_link(core, mail);
		break;
	case MAIL_UNLINK:
		link_close(&mail->shard->links[mail->rank]);
		break;
	case MAIL_HYPER:
		core_hyper(core, mail);
		break;
	case MAIL_HOLD:
	case MAIL_GO:
		core_members(core, mail, now_ns);
		break;
	case MAIL_ROUNDS:
		core_rounds(core, mail);
		break;
	case MAIL_PAUSE:
		mail->shard->paused = mail->value != 0;
		mail->shard->retry_due = true;
		break;
	case MAIL_SNAPSHOT:
		if (mail->snapshot)
			snapshot_begin(mail->shard, mail->snapshot);
		else
			snapshot_end(mail->shard);
		break;
	case MAIL_WHO:
		core_who(core, mail);
		break;
	case MAIL_UPLINK:
		core_uplink(core, mail);
		break;
	case MAIL_UPLINK_END:
		if (mail->value)
			uplink_leave(mail->shard);
		else
			uplink_close(mail->shard, mail->rank, mail->detail, mail->broken);
		break;
	case MAIL_REHOME:
		core_rehome(core, mail, now_ns);
		break;
	case MAIL_STOP:
		core->stopping = true;
		break;
	default:
		assert(!"mail that only a core sends");
	}
}

static unsigned core_mail(struct core *core, uint64_t now_ns)
{
	struct mail mail;
	unsigned count = 0;

	if (core->owes_mail) {
		if (mailbox_send(core->config.control, &core->owed) < 0)
			return 0;
		core->owes_mail = false;
	}
	while (count < CORE_MAIL_MAX && !core->owes_mail && mailbox_receive(core->inbox, &mail) == 0) {
		core_read(core, &mail, now_ns);
		count++;
	}
	return count;
}

/* ---- tick ---- */

static void core_tell_ends(struct core *core, struct shard *shard)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct link *link = &shard->links[rank];
		struct mail mail = {
			.kind = MAIL_LINK_CLOSED,
			.core = core->config.index,
			.shard = shard,
			.job = shard->spec->id,
			.generation = shard->spec->generation,
			.rank = rank,
			.chunk = link->end_chunk,
			.value = link->end_error,
			.detail = link->serial,
			.broken = link->end_broken,
		};

		memcpy(mail.text, link->end_text, sizeof(mail.text));
		if (!link->end_untold || mailbox_send(core->config.control, &mail) < 0)
			continue;
		link->end_untold = false;
		core->untold--;
	}
}

static struct mail core_stall_mail(
	const struct core *core, struct shard *shard, const struct chunk *chunk, uint64_t round)
{
	return (struct mail){
		.kind = MAIL_STALLED,
		.core = core->config.index,
		.shard = shard,
		.job = shard->spec->id,
		.generation = shard->spec->generation,
		.chunk = chunk->index,
		.round = round,
	};
}

/* Tells control that the round which it was told of last is not waited for any more. */
static void core_report_end(struct core *core, struct shard *shard)
{
	const struct chunk *chunk = &shard->chunks[shard->stalled_chunk];
	struct mail mail = core_stall_mail(core, shard, chunk, shard->stalled_round);

	mail.value = -1;
	if (chunk->round != shard->stalled_round)
		shard->stalled_owed = mailbox_send(core->config.control, &mail) < 0;
}

/* Tells control of the oldest open round, when it has been open for long. */
static void core_report_stall(struct core *core, struct shard *shard, uint64_t now_ns)
{
	struct chunk *chunk;
	struct mail mail;

	if (shard->stalled_owed && !shard->failed)
		core_report_end(core, shard);
	if (shard->open_oldest == CHUNK_NONE || shard->failed)
		return;
	chunk = &shard->chunks[shard->open_oldest];
	if (now_ns < chunk->opened_ns + CORE_STALL_NS || now_ns < shard->stalled_told_ns + CORE_STALL_NS)
		return;
	mail = core_stall_mail(core, shard, chunk, chunk->round);
	core_list_missing(shard, chunk, &mail);
	if (mailbox_send(core->config.control, &mail) < 0)
		return;
	shard->stalled_told_ns = now_ns;
	shard->stalled_chunk = shard->open_oldest;
	shard->stalled_round = chunk->round;
	shard->stalled_owed = true;
}

static void core_tell_drained(struct core *core, struct shard *shard)
{
	struct mail mail = {
		.kind = MAIL_DRAINED,
		.core = core->config.index,
		.shard = shard,
		.job = shard->spec->id,
		.generation = shard->spec->generation,
	};

	shard->stop_told = mailbox_send(core->config.control, &mail) == 0;
}

/* What a shard needs now and then beside its messages. Returns whether more can be done at once. */
static bool core_tend(struct core *core, struct shard *shard, uint64_t now_ns)
{
	bool more;

	if (shard->stage == SHARD_LIVE) {
		more = link_sweep(shard);
		more = snapshot_step(shard) || more;
		more = uplink_step(shard) || more;
		if (shard->stops && shard->stop_left == 0 && !shard->stop_told)
			core_tell_drained(core, shard);
		/* Once, however many tables came: a flood of them must not walk the open chunks each time. */
		if (shard->retry_due) {
			shard->retry_due = false;
			commit_retry(shard, now_ns);
		}
		return more;
	}
	if (core->stopping)
		detach_begin(shard, 0, false, now_ns);
	snapshot_end(shard);
	snapshot_step(shard);
	more = detach_step(shard, now_ns) || shard->snapshot;
	if (more || shard->stage != SHARD_CLOSING || core->owes_mail)
		return more;
	core_detached(core, shard);
	return true;
}

/* The lease was over for some commits, and control has renewed it without having held the jobs. */
static void core_renewed(struct core *core)
{
	core->lease.missed = false;
	for (struct shard *shard = core->shards; shard; shard = shard->next)
		shard->retry_due = shard->retry_due || shard->leased;
}

static unsigned core_tick(struct core *core, uint64_t now_ns)
{
	unsigned handled = core_mail(core, now_ns);
	struct shard *next;

	if (core->lease.missed && !lease_is_over(&core->lease))
		core_renewed(core);
	for (struct shard *shard = core->shards; shard; shard = next) {
		next = shard->next;
		if (shard->failure_untold)
			shard->failure_untold = mailbox_send(core->config.control, &shard->failure) < 0;
		if (core->untold > 0)
			core_tell_ends(core, shard);
		core_report_stall(core, shard, now_ns);
		handled += core_tend(core, shard, now_ns);
	}
	fair_tick(core, now_ns);
	core->tick_ns = now_ns;
	return handled;
}

/* ---- the loop ---- */

unsigned core_step(struct core *core, uint64_t now_ns)
{
	unsigned handled = 0;
	bool stirred = false, idle;

	core->lease.step_ns = now_ns;
	for (unsigned i = 0; i < core->queue_count; i++) {
		struct queue *queue = core->queues[i];
		unsigned count = queue->ops->poll(queue, now_ns, core->events, CORE_BATCH);

		if (count > 0)
			receive_batch(core, queue, core->events, count, now_ns);
		handled += count;
		stirred |= queue->stirred;
	}
	for (unsigned i = 0; i < core->uplink_count; i++) {
		handled += uplink_poll(core, core->uplinks[i], now_ns);
		stirred |= core->uplinks[i]->stirred;
	}
	idle = handled == 0;
	stats_add(&core->counters.polls, 1);
	stats_add(&core->counters.events, handled);
	stats_add(&core->counters.batches, handled > 0);
	if (handled == 0 || now_ns - core->tick_ns >= CORE_TICK_NS)
		handled += core_tick(core, now_ns);
	fair_step(core, idle);
	for (unsigned i = 0; i < core->queue_count; i++)
		core->queues[i]->ops->flush(core->queues[i]);
	for (unsigned i = 0; i < core->uplink_count; i++)
		core->uplinks[i]->ops->flush(core->uplinks[i]);
	/* A queue that can wake nobody has something to do, if only for another core: no time to sleep. */
	return handled + stirred;
}

static int core_watch(struct core *core, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (epoll_ctl(core->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

/* Arms everything: 0 when it is safe to sleep. */
static int core_arm(struct core *core)
{
	int fd = mailbox_arm(core->inbox);

	for (unsigned i = 0; fd >= 0 && i < core->queue_count; i++) {
		int rc = core_watch(core, fd);

		if (rc < 0)
			return rc;
		fd = core->queues[i]->ops->arm(core->queues[i]);
	}
	for (unsigned i = 0; fd >= 0 && i < core->uplink_count; i++) {
		int rc = core_watch(core, fd);

		if (rc < 0)
			return rc;
		fd = core->uplinks[i]->ops->arm(core->uplinks[i]);
	}
	return fd < 0 ? fd : core_watch(core, fd);
}

/* With a device that has nothing (net_null, a loaded machine): 7 % of a CPU; 73 % when it only yields. */
static void core_nap(struct core *core)
{
	struct timespec nap = {.tv_nsec = (long)core->nap_ns};

	stats_add(&core->counters.sleeps, 1);
	nanosleep(&nap, NULL);
	core->nap_ns = 2 * core->nap_ns < CORE_NAP_MAX ? 2 * core->nap_ns : CORE_NAP_MAX;
}

static void core_sleep(struct core *core)
{
	struct epoll_event events[CORE_QUEUES_MAX + CORE_UPLINKS_MAX + 1];
	int rc = core->blind ? -ENOTSUP : core_arm(core);

	if (rc == 0) {
		stats_add(&core->counters.sleeps, 1);
		epoll_wait(core->epoll_fd, events, CORE_QUEUES_MAX + CORE_UPLINKS_MAX + 1,
			core->fair.dry ? 1 : CORE_SLEEP_MS);
	} else if (rc == -ENOTSUP) {
		core->blind = true;
		core_nap(core);
	} else {
		sched_yield();
	}
	mailbox_disarm(core->inbox);
}

void *core_run(void *arg)
{
	struct core *core = arg;
	uint64_t now_ns = clock_now_ns(), worked_ns = now_ns;

	if (core->config.cpu >= 0)
		cpu_pin_self(core->config.cpu);
	while (!core->stopping || core->shards || core->owes_mail) {
		unsigned handled = core_step(core, now_ns);
		uint64_t after_ns = clock_now_ns();

		if (handled > 0) {
			stats_add(&core->counters.busy_ns, after_ns - now_ns);
			worked_ns = after_ns;
			core->nap_ns = CORE_NAP_NS;
		} else if (core->config.poll == CORE_ADAPTIVE) {
			if (after_ns - worked_ns < core->config.spin_ns)
				sched_yield();
			else
				core_sleep(core);
			after_ns = clock_now_ns();
		} else {
			cpu_relax();
		}
		now_ns = after_ns;
	}
	return NULL;
}
